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

// One operation. Some outputs take the place of stores: evaluated arrays that the operation holds itself,
// not as inputs of the graph (siblings would share those, and nothing could tell when they are the last).
// Where nobody else holds a store its memory is written in place, else its copy.
class Call : public mx::Primitive {
 public:
  using Body = std::function<void(const Pointers&)>;

  // The last outputs are the stores, in their order.
  Call(const char* name, Body body, std::vector<mx::array> stores = {});

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  const char* name() const override { return name_; }

 private:
  const char* name_;
  Body body_;
  std::vector<mx::array> stores_;
};

// An operation with one output and no stores.
mx::array call(const char* name, mx::Shape shape, mx::Dtype type, std::vector<mx::array> inputs, Call::Body body);

std::string text(const mx::Shape& shape);                     // "[2, 3]"
void require(bool ok, const std::string& message);            // throws std::invalid_argument
mx::array row_major(const mx::array& a);                      // lazily
mx::array evaluated(mx::array a);                             // now
int rows_of(const mx::array& x, int k, const std::string& name);  // of float32 inputs [.., k]
Gate gate_named(const std::string& name);

// Keys and values as `Stores`, yet without memory; the check that they are; and both as `Call` wants them:
// with memory of their own, row-major.
Stores stores_of(const mx::array& keys);
void require_store(const mx::array& keys, const mx::array& values, int rows, const std::string& name);
std::vector<mx::array> settled(std::vector<mx::array> stores);

}  // namespace ingle
