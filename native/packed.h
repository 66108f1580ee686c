// Weights in the layout that the kernels stream, and the way back.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels.h"

namespace ingle {

// A matrix [n, k] that owns its packed bytes. Immutable once made; shared between threads.
// (What Python shares with a program counts its owners in C++: the last may be a thread without the GIL.)
class Packed : public std::enable_shared_from_this<Packed> {
 public:
  // From MLX's packed codes (a little-endian stream of `bits`-wide codes for each row), with one float32
  // scale and bias for every `group` inputs. `bits`
  // is 2, 3, 4, 5, 6 or 8, `group` 16, 32, 64 or 128. Codes of 2 and 3 bits are kept in 4.
  static std::shared_ptr<Packed> codes(const uint32_t* words, const float* scales, const float* biases, int n, int k,
                                       int bits, int group);

  // From a row-major matrix of 4- or 2-byte floats.
  static std::shared_ptr<Packed> floats(const void* values, Form form, int n, int k);

  ~Packed();
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  const Weight& weight() const { return weight_; }
  size_t nbytes() const { return size_; }
  static size_t live_bytes();  // of all weights in this process

  // Row `row` times `factor`: k floats. scale * code + bias, in float32.
  void read_row(int row, float factor, float* out) const;

 private:
  Packed(int n, int k, Form form, long block_bytes);

  unsigned char* data_;
  size_t size_;
  Weight weight_{};
};

}  // namespace ingle
