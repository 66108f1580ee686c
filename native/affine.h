// What one affine product needs, ready for the kernels.
#pragma once

namespace ingle {

struct AffineJob {
  const float* x;              // [rows, k]; for 4 bits each run of 32 is (16 even, 16 odd) inputs
  const float* sums;           // [rows, k / group]: sum of x over each group
  const unsigned char* codes;  // [n, k * bits / 8]
  const float* scales;         // [n, k / group]
  const float* biases;         // [n, k / group]
  float* out;                  // [rows, n]
  int rows, n, k, bits, group;
};

// Outputs [first, last) of every row.
void affine_avx512(const AffineJob& job, int first, int last);
void affine_avx2(const AffineJob& job, int first, int last);
void affine_portable(const AffineJob& job, int first, int last);

}  // namespace ingle
