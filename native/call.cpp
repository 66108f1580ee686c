#include "call.h"

#include <stdexcept>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace ingle {
namespace {

mx::Stream cpu() { return mx::to_stream(mx::Device(mx::Device::cpu)); }

}  // namespace

Call::Call(const char* name, Body body) : Primitive(cpu()), name_(name), body_(std::move(body)) {}

void Call::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  Pointers pointers;
  for (const auto& input : inputs) {
    encoder.set_input_array(input);
    pointers.push_back(const_cast<char*>(input.data<char>()));
  }
  mx::array& output = outputs[0];
  output.set_data(mx::allocator::malloc(output.nbytes()));
  encoder.set_output_array(output);
  pointers.push_back(output.data<char>());
  encoder.dispatch([body = body_, pointers = std::move(pointers)] { body(pointers); });
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

void require_held(const KVSpan& span, int first, int end, const std::string& name) {
  require(first >= span.base() && end <= span.end(),
          name + ": positions " + std::to_string(first) + " to " + std::to_string(end) + " do not fit a table of " +
              std::to_string(span.base()) + " to " + std::to_string(span.end()));
}

void require_shape(const KVShape& shape, int layer, int heads, int dim, const std::string& name) {
  require(layer >= 0 && layer < shape.layers && heads == shape.heads && dim == shape.dim,
          name + ": layer " + std::to_string(layer) + " of " + std::to_string(heads) + " heads of " + std::to_string(dim) +
              " does not fit a table of " + std::to_string(shape.layers) + " layers, " + std::to_string(shape.heads) +
              " heads of " + std::to_string(shape.dim));
}

}  // namespace ingle
