// The arithmetic of affine_linear for one instruction set. CMake compiles this file once for each:
// INGLE_ISA names the symbol, INGLE_TILE is how many activation rows share decoded codes.
// No standard headers here: inline functions compiled with wide flags must not leak to other units.

#include "affine.h"

namespace ingle {
namespace {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int i32x16 __attribute__((vector_size(64)));
typedef unsigned char u8x16 __attribute__((vector_size(16)));

inline u8x16 load_bytes(const unsigned char* p) {
  u8x16 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline f32x16 load_floats(const float* p) {
  f32x16 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Sum of the lanes, always in this order.
inline float sum_lanes(f32x16 v) {
  float a[16];
  __builtin_memcpy(a, &v, sizeof v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  return a[0];
}

// ROWS rows of activations against weight rows [first, last). Each output's operations are the same
// for every ROWS: per group, codes times activations lane by lane; then times the group's scale into
// the running lanes; the lanes summed at the end; the biases' part added last.
template <int ROWS, int BITS>
void tile(const AffineJob& job, int row, int first, int last) {
  const int groups = job.k / job.group;
  const long stride = static_cast<long>(job.k) * BITS / 8;
  for (int n = first; n < last; ++n) {
    const unsigned char* codes = job.codes + n * stride;
    const float* scales = job.scales + static_cast<long>(n) * groups;
    const float* biases = job.biases + static_cast<long>(n) * groups;
    f32x16 total[ROWS];
    float shift[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      total[r] = f32x16{};
      shift[r] = 0.0f;
    }
    const float* x = job.x + static_cast<long>(row) * job.k;
    const float* sums = job.sums + static_cast<long>(row) * groups;
    int at = 0;
    for (int g = 0; g < groups; ++g) {
      f32x16 part[ROWS];
      for (int r = 0; r < ROWS; ++r) part[r] = f32x16{};
      for (int end = at + job.group; at < end;) {
        if (BITS == 4) {  // 16 bytes: the low halves meet even inputs, the high halves odd ones
          const i32x16 both = __builtin_convertvector(load_bytes(codes + at / 2), i32x16);
          const f32x16 low = __builtin_convertvector(both & 15, f32x16);
          const f32x16 high = __builtin_convertvector(both >> 4, f32x16);
          for (int r = 0; r < ROWS; ++r) {
            const float* in = x + static_cast<long>(r) * job.k + at;
            part[r] += low * load_floats(in);
            part[r] += high * load_floats(in + 16);
          }
          at += 32;
        } else {
          const i32x16 wide = __builtin_convertvector(load_bytes(codes + at), i32x16);
          const f32x16 w = __builtin_convertvector(wide, f32x16);
          for (int r = 0; r < ROWS; ++r) part[r] += w * load_floats(x + static_cast<long>(r) * job.k + at);
          at += 16;
        }
      }
      for (int r = 0; r < ROWS; ++r) {
        total[r] += part[r] * scales[g];
        shift[r] += biases[g] * sums[static_cast<long>(r) * groups + g];
      }
    }
    for (int r = 0; r < ROWS; ++r)
      job.out[static_cast<long>(row + r) * job.n + n] = sum_lanes(total[r]) + shift[r];
  }
}

// Rows in tiles of ROWS, the rest in smaller ones.
template <int ROWS, int BITS>
void rows_from(const AffineJob& job, int row, int first, int last) {
  for (; row + ROWS <= job.rows; row += ROWS) tile<ROWS, BITS>(job, row, first, last);
  if constexpr (ROWS > 1) rows_from<ROWS / 2, BITS>(job, row, first, last);
}

}  // namespace

void INGLE_ISA(const AffineJob& job, int first, int last) {
  if (job.bits == 4)
    rows_from<INGLE_TILE, 4>(job, 0, first, last);
  else
    rows_from<INGLE_TILE, 8>(job, 0, first, last);
}

}  // namespace ingle
