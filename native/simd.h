// Vectors of the instruction set that this unit is compiled for, and the few functions on them.
// Included only by units compiled once for each instruction set, inside namespace INGLE_ISA: inline
// functions compiled with wide flags must not leak to others, so no standard headers here.
//
// Units are compiled with -ffp-contract=off: a multiply-add happens where `fma` says so and nowhere
// else, so that every instance of a template rounds alike.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ingle::INGLE_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kLanes = 16;                  // outputs in a block of a packed weight, whatever the vectors
constexpr int kParts = kLanes / kWidth;     // vectors that cover them

typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef int Ints __attribute__((vector_size(kWidth * 4)));
typedef unsigned short Halves __attribute__((vector_size(kWidth * 2)));

template <class V, class T>
inline V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline Floats load(const float* p) { return load<Floats>(p); }

inline void store(float* p, Floats v) { __builtin_memcpy(p, &v, sizeof v); }

inline Floats all(float x) { return x - Floats{}; }

inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

// The lanes' sum and maximum, always in this order.
inline float sum_lanes(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#endif
  float a[kWidth];
  __builtin_memcpy(a, &v, sizeof v);
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  return a[0];
}

inline float max_lanes(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#endif
  float a[kWidth];
  __builtin_memcpy(a, &v, sizeof v);
  float most = a[0];
  for (int i = 1; i < kWidth; ++i) most = a[i] > most ? a[i] : most;
  return most;
}

inline Floats from_bits(Ints bits) { return reinterpret_cast<Floats>(bits); }
inline Ints to_bits(Floats v) { return reinterpret_cast<Ints>(v); }

// IEEE half precision to float: exact, subnormals, infinities and NaN included.
inline Floats from_f16(Halves h) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(h));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(h));
#else
  const Ints wide = __builtin_convertvector(h, Ints);
  const Ints magnitude = (wide & 0x7fff) << 13;
  const Floats scaled = from_bits(magnitude) * 0x1p112f;  // moves the exponent's bias from 15 to 127
  const Ints special = magnitude >= (0x7c00 << 13);       // infinity or NaN
  const Ints bits = special ? (magnitude | 0x7f800000) : to_bits(scaled);
  return from_bits(bits | ((wide & 0x8000) << 16));
#endif
}

inline Floats from_bf16(Halves h) { return from_bits(__builtin_convertvector(h, Ints) << 16); }

// Round to nearest even; NaN stays NaN.
inline unsigned short to_bf16(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return static_cast<unsigned short>((bits >> 16) | 64);
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e^x within 2 ulp: 2^n times a polynomial on [-ln2/2, ln2/2] (Cody and Waite's reduction, minimax
// coefficients as in Moshier's Cephes, expf). 0 below -87.3; x above 88 is taken as 88; NaN stays.
inline Floats exp(Floats x) {
  const Ints tiny = x < all(-87.3f);
  x = x > all(88.0f) ? all(88.0f) : x;
  x = tiny ? all(-87.3f) : x;
  const Floats shifted = fma(x, all(1.44269504088896341f), all(12582912.0f));  // rounds to an integer
  const Floats n = shifted - 12582912.0f;
  Floats r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const Ints power = (to_bits(shifted) << 23) + 0x3f800000;  // the low bits of `shifted` are n
  return tiny ? Floats{} : p * from_bits(power);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// tanh(x) = 1 - 2 / (e^2x + 1); below 1/4, where that cancels, its series to the ninth power.
inline Floats tanh(Floats x) {
  const Floats square = x * x;
  const Floats far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  Floats series = all(62.0f / 2835);
  series = fma(series, square, all(-17.0f / 315));
  series = fma(series, square, all(2.0f / 15));
  series = fma(series, square, all(-1.0f / 3));
  series = fma(series, square, all(1.0f));
  return square < all(0.0625f) ? x * series : far;
}

// Natural logarithm of positive normal numbers within 2 ulp (Moshier's Cephes, logf).
inline Floats log(Floats x) {
  Ints bits = to_bits(x);
  Ints e = ((bits >> 23) & 255) - 126;
  Floats m = from_bits((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  const Ints low = m < all(0.707106781186547524f);
  e += low;  // true is -1
  m = low ? m + m - 1.0f : m - 1.0f;
  const Floats z = m * m;
  Floats p = all(7.0376836292e-2f);
  p = fma(p, m, all(-1.1514610310e-1f));
  p = fma(p, m, all(1.1676998740e-1f));
  p = fma(p, m, all(-1.2420140846e-1f));
  p = fma(p, m, all(1.4249322787e-1f));
  p = fma(p, m, all(-1.6668057665e-1f));
  p = fma(p, m, all(2.0000714765e-1f));
  p = fma(p, m, all(-2.4999993993e-1f));
  p = fma(p, m, all(3.3333331174e-1f));
  const Floats scale = __builtin_convertvector(e, Floats);
  Floats y = p * m * z;
  y = fma(scale, all(-2.12194440e-4f), y);
  y = fma(z, all(-0.5f), y);
  return fma(scale, all(0.693359375f), m + y);
}

}  // namespace ingle::INGLE_ISA
