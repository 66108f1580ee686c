#include "call.h"

#include <cstring>
#include <stdexcept>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace ingle {
namespace {

mx::Stream cpu() { return mx::to_stream(mx::Device(mx::Device::cpu)); }

}  // namespace

Call::Call(const char* name, Body body, std::vector<mx::array> stores)
    : Primitive(cpu()), name_(name), body_(std::move(body)), stores_(std::move(stores)) {}

void Call::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  Pointers pointers;
  std::vector<std::pair<mx::array, char*>> copies;  // from, to
  const size_t fresh = outputs.size() - stores_.size();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= fresh && stores_[i - fresh].is_donatable()) {
      outputs[i].copy_shared_buffer(stores_[i - fresh]);
      continue;
    }
    outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
    if (i >= fresh) copies.emplace_back(stores_[i - fresh], outputs[i].data<char>());
  }
  stores_.clear();
  for (const auto& input : inputs) {
    encoder.set_input_array(input);
    pointers.push_back(const_cast<char*>(input.data<char>()));
  }
  for (auto& output : outputs) {
    encoder.set_output_array(output);
    pointers.push_back(output.data<char>());
  }
  encoder.dispatch([body = body_, pointers = std::move(pointers), copies = std::move(copies)] {
    for (const auto& [from, to] : copies) std::memcpy(to, from.data<char>(), from.nbytes());
    body(pointers);
  });
}

void Call::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error(std::string(name_) + " runs on the CPU only");
}

mx::array call(const char* name, mx::Shape shape, mx::Dtype type, std::vector<mx::array> inputs, Call::Body body) {
  return mx::array(std::move(shape), type, std::make_shared<Call>(name, std::move(body)),
                   std::move(inputs));
}

std::string text(const mx::Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

mx::array row_major(const mx::array& a) { return mx::contiguous(a, false, cpu()); }

mx::array evaluated(mx::array a) {
  a.eval();
  return a;
}

int rows_of(const mx::array& x, int k, const std::string& name) {
  require(x.dtype() == mx::float32, name + ": x has the wrong dtype, expected float32");
  require(x.ndim() >= 1 && x.shape(-1) == k,
          name + ": x " + text(x.shape()) + " does not fit a weight of " + std::to_string(k) + " inputs");
  return static_cast<int>(x.size() / k);
}

Gate gate_named(const std::string& name) {
  if (name == "silu") return Gate::silu;
  require(name == "gelu_tanh", "activation '" + name + "' is not known; known: silu, gelu_tanh");
  return Gate::gelu_tanh;
}

Stores stores_of(const mx::array& keys) {
  return {nullptr, nullptr, keys.shape(1), keys.shape(2), keys.shape(3), keys.dtype() == mx::bfloat16};
}

void require_store(const mx::array& keys, const mx::array& values, int rows, const std::string& name) {
  require(keys.ndim() == 4 && keys.shape() == values.shape() && keys.dtype() == values.dtype() &&
              keys.shape(0) == rows && keys.shape(2) % kBlock == 0 && (keys.dtype() == mx::float32 || keys.dtype() == mx::bfloat16),
          name + ": keys " + text(keys.shape()) + " and values " + text(values.shape()) +
              " must both be float32 or bfloat16 [" + std::to_string(rows) + ", heads, columns (a multiple of 16), dim]");
}

std::vector<mx::array> settled(std::vector<mx::array> stores) {
  std::vector<mx::array> waiting;
  for (const auto& store : stores)
    if (!store.is_available()) waiting.push_back(store);
  if (!waiting.empty()) mx::eval(waiting);
  for (auto& store : stores)
    if (!store.flags().row_contiguous) store = evaluated(row_major(store));
  return stores;
}

}  // namespace ingle
