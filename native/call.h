// How an operation becomes a lazy MLX array: one custom primitive, and the checks that come before it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "phases.h"

namespace ingle {

namespace mx = mlx::core;

using Pointers = std::vector<char*>;  // inputs, then outputs

template <class T>
T* as(char* p) {
  return reinterpret_cast<T*>(p);
}

// One operation with one output.
class Call : public mx::Primitive {
 public:
  using Body = std::function<void(const Pointers&)>;

  Call(const char* name, Body body);

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  const char* name() const override { return name_; }

 private:
  const char* name_;
  Body body_;
};

mx::array call(const char* name, mx::Shape shape, mx::Dtype type, std::vector<mx::array> inputs, Call::Body body);

std::string text(const mx::Shape& shape);                     // "[2, 3]"
void require(bool ok, const std::string& message);            // throws std::invalid_argument
mx::array row_major(const mx::array& a);                      // lazily
mx::array evaluated(mx::array a);                             // now
int rows_of(const mx::array& x, int k, const std::string& name);  // of float32 inputs [.., k]
Gate gate_named(const std::string& name);

// That a span holds positions [first, end), and that its shape is this.
void require_held(const KVSpan& span, int first, int end, const std::string& name);
void require_shape(const KVShape& shape, int layer, int heads, int dim, const std::string& name);

}  // namespace ingle
