// Functions of one row: preparation for products, norms, rotation, gates, sums.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace ingle::INGLE_ISA {

// The first `count` floats, zeros behind them.
inline Floats load_some(const float* p, int count) {
  float lanes[kWidth] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}

inline void store_some(float* p, Floats v, int count) {
  float lanes[kWidth];
  store(lanes, v);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// out[i] = f(vectors at i) for n floats of one or two inputs; the rest of a row is padded with zeros.
template <class F>
inline void each(int n, float* out, const F& f) {
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, f([i](const float* p) { return load(p + i); }));
  if (i < n) store_some(out + i, f([i, n](const float* p) { return load_some(p + i, n - i); }), n - i);
}

inline void to_bf16(const float* x, int n, unsigned short* out) {
  int i = 0;
#if defined(__AVX512BF16__)
  for (; i + 16 <= n; i += 16) {
    const __m256bh v = _mm512_cvtneps_pbh(load(x + i));
    __builtin_memcpy(out + i, &v, 32);
  }
#endif
  for (; i < n; ++i) out[i] = to_bf16(x[i]);
}

// Sums are of the activations as the product will read them: with the bias term they then cancel as
// they should.
inline void prepare(const float* x, int k, [[maybe_unused]] unsigned short* halves, float* const sums[4]) {
#if defined(__AVX512BF16__)
  to_bf16(x, k, halves);
#endif
  const int count = k / 16;
  for (int g = 0; g < count; ++g) {
#if defined(__AVX512BF16__)
    sums[0][g] = sum_lanes(from_bf16(load<Halves>(halves + g * 16)));
#else
    Floats sum = load(x + g * 16);
    for (int i = kWidth; i < 16; i += kWidth) sum += load(x + g * 16 + i);
    sums[0][g] = sum_lanes(sum);
#endif
  }
  for (int level = 1; level < 4; ++level)
    for (int g = 0; g < count >> level; ++g) sums[level][g] = sums[level - 1][2 * g] + sums[level - 1][2 * g + 1];
}

inline void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  Floats squares{};
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) squares = fma(load(x + i), load(x + i), squares);
  if (i < n) {
    const Floats rest = load_some(x + i, n - i);
    squares = fma(rest, rest, squares);
  }
  const float factor = 1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps);
  each(n, out, [&](auto at) { return at(x) * factor * at(weight); });
}

// Pairs (i, i + dim / 2) by the angles whose cosine and sine are given. In place is fine.
inline void rotate(const float* x, const float* cos, const float* sin, int dim, float* out) {
  const int half = dim / 2;
  int i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Floats a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, a * c - b * s);
    store(out + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[i] + a * sin[i];
  }
}

inline void gate(const float* gate, const float* up, int n, Gate kind, float* out) {
  if (kind == Gate::silu) return each(n, out, [&](auto at) { return at(gate) * sigmoid(at(gate)) * at(up); });
  each(n, out, [&](auto at) {  // GELU's tanh form (Hendrycks and Gimpel, 2016), as (1 + tanh y) / 2 = sigmoid(2y)
    const Floats g = at(gate);
    return g * sigmoid(1.5957691216057308f * fma(0.044715f * g * g, g, g)) * at(up);  // 2 sqrt(2 / pi)
  });
}

inline void add(const float* x, const float* y, float scale, int n, float* out) {
  each(n, out, [&](auto at) { return at(x) + at(y) * scale; });
}

inline void softcap(float* x, int n, float cap) {
  each(n, x, [&](auto at) { return tanh(at(x) / cap) * cap; });
}

}  // namespace ingle::INGLE_ISA
