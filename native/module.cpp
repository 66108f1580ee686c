// The Python module: an MLX primitive for products with group-affine weights, and its switches.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "affine.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "pool.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace ingle {
namespace {

using Kernel = void (*)(const AffineJob&, int, int);

struct Isa {
  const char* name;
  Kernel kernel;
};

std::vector<Isa> available_isas() {
  std::vector<Isa> out;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    out.push_back({"avx512", affine_avx512});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out.push_back({"avx2", affine_avx2});
#endif
  out.push_back({"portable", affine_portable});
  return out;
}

const std::vector<Isa> isas = available_isas();
std::atomic<const Isa*> current{&isas[0]};

// Activations as the kernels read them, and their sum over each group.
void prepare(const float* x, float* ordered, float* sums, int k, int bits, int group) {
  for (int g = 0; g < k / group; ++g) {
    float sum = 0.0f;
    for (int i = 0; i < group; ++i) sum += x[g * group + i];
    sums[g] = sum;
  }
  if (bits != 4) {
    std::copy(x, x + k, ordered);
    return;
  }
  for (int at = 0; at < k; at += 32)
    for (int i = 0; i < 16; ++i) {
      ordered[at + i] = x[at + 2 * i];
      ordered[at + 16 + i] = x[at + 2 * i + 1];
    }
}

void run(AffineJob job, const float* x, Kernel kernel) {
  std::vector<float> ordered(static_cast<size_t>(job.rows) * job.k);
  std::vector<float> sums(static_cast<size_t>(job.rows) * (job.k / job.group));
  for (int r = 0; r < job.rows; ++r)
    prepare(x + static_cast<size_t>(r) * job.k, ordered.data() + static_cast<size_t>(r) * job.k,
            sums.data() + static_cast<size_t>(r) * (job.k / job.group), job.k, job.bits, job.group);
  job.x = ordered.data();
  job.sums = sums.data();
  constexpr int kOutputs = 32;  // of one part: enough work to share, small enough to balance
  const int parts = (job.n + kOutputs - 1) / kOutputs;
  parallel(parts, [&](int part) { kernel(job, part * kOutputs, std::min(job.n, (part + 1) * kOutputs)); });
}

class AffineLinear : public mx::Primitive {
 public:
  AffineLinear(mx::Stream stream, int bits, int group) : Primitive(stream), bits_(bits), group_(group) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    const auto &x = inputs[0], &codes = inputs[1], &scales = inputs[2], &biases = inputs[3];
    AffineJob job{};
    job.k = x.shape(-1);
    job.rows = static_cast<int>(x.size() / job.k);
    job.n = codes.shape(0);
    job.bits = bits_;
    job.group = group_;
    job.codes = reinterpret_cast<const unsigned char*>(codes.data<uint32_t>());
    job.scales = scales.data<float>();
    job.biases = biases.data<float>();
    job.out = out.data<float>();
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : inputs) encoder.set_input_array(input);
    encoder.set_output_array(out);
    encoder.dispatch([job, x_data = x.data<float>(), kernel = current.load()->kernel] {
      if (job.rows > 0 && job.n > 0) run(job, x_data, kernel);
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("affine_linear runs on the CPU only");
  }

  const char* name() const override { return "AffineLinear"; }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const AffineLinear&>(other);
    return bits_ == o.bits_ && group_ == o.group_;
  }

 private:
  int bits_, group_;
};

std::string shape_text(const mx::array& a) {
  std::string text = "[";
  for (int i = 0; i < a.ndim(); ++i) text += (i ? ", " : "") + std::to_string(a.shape(i));
  return text + "]";
}

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument("affine_linear: " + message);
}

mx::array affine_linear(const mx::array& x, const mx::array& codes, const mx::array& scales,
                        const mx::array& biases, int bits, int group) {
  require(bits == 4 || bits == 8, "bits is " + std::to_string(bits) + ", expected 4 or 8");
  require((group == 16 && bits == 8) || group == 32 || group == 64 || group == 128,
          "groups of " + std::to_string(group) + " are not supported for " + std::to_string(bits) + " bits");
  require(x.ndim() >= 1 && x.dtype() == mx::float32, "x must be float32 [..., K]");
  require(codes.ndim() == 2 && codes.dtype() == mx::uint32, "codes must be uint32 [N, K * bits / 32]");
  const int k = x.shape(-1), n = codes.shape(0);
  const mx::Shape wanted{n, k / group};
  require(k > 0 && k % group == 0 && codes.shape(1) == static_cast<long>(k) * bits / 32,
          "x " + shape_text(x) + " does not fit codes " + shape_text(codes));
  require(scales.shape() == wanted && biases.shape() == wanted,
          "scales " + shape_text(scales) + " and biases " + shape_text(biases) + " do not fit codes " +
              shape_text(codes) + " in groups of " + std::to_string(group));
  const auto stream = mx::to_stream(mx::Device(mx::Device::cpu));
  auto row_major = [&](const mx::array& a) { return mx::contiguous(a, false, stream); };
  mx::Shape shape = x.shape();
  shape.back() = n;
  return mx::array(std::move(shape), mx::float32, std::make_shared<AffineLinear>(stream, bits, group),
                   {row_major(x), row_major(codes), row_major(mx::astype(scales, mx::float32, stream)),
                    row_major(mx::astype(biases, mx::float32, stream))});
}

}  // namespace
}  // namespace ingle

NB_MODULE(_cpu, m) {
  m.doc() = "Ingle's native CPU primitives for MLX";
  m.def("isa", [] { return std::string(ingle::current.load()->name); });
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const auto& isa : ingle::isas) names.emplace_back(isa.name);
    return names;
  });
  m.def("set_isa", [](const std::string& name) {
    for (const auto& isa : ingle::isas)
      if (name == isa.name) {
        ingle::current.store(&isa);
        return;
      }
    throw std::invalid_argument("isa " + name + " is not available on this CPU");
  }, nb::arg("name"));
  m.def("threads", &ingle::pool_threads);
  m.def("set_threads", &ingle::set_pool_threads, nb::arg("count"));
  m.def("affine_linear", &ingle::affine_linear, nb::arg("x"), nb::arg("codes"), nb::arg("scales"),
        nb::arg("biases"), nb::arg("bits"), nb::arg("group_size"));
}
