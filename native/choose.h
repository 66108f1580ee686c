// Passes over a row of logits: greatest value, sums of exponentials, and the best of noisy values.
#pragma once

#include "kernels.h"
#include "rows.h"
#include "simd.h"

namespace ingle::INGLE_ISA {

typedef unsigned Words __attribute__((vector_size(kWidth * 4)));

inline bool any(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#else
  int lanes[kWidth], found = 0;
  __builtin_memcpy(lanes, &mask, sizeof mask);
  for (int i = 0; i < kWidth; ++i) found |= lanes[i];
  return found != 0;
#endif
}

inline bool scaled(const float* x, int n, float divisor, float* out, float* most) {
  const Floats infinite = all(__builtin_inff());
  Floats greatest = -infinite;
  Ints good = to_bits(all(0.0f)) - 1;  // all bits
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = load(x + i);
    good &= v < infinite;  // false for NaN
    const Floats y = v / divisor;
    greatest = maximum(y, greatest);
    if (out) store(out + i, y);
  }
  bool ok = !any(~good);
  float top = max_lanes(greatest);
  for (; i < n; ++i) {
    ok = ok && x[i] < __builtin_inff();
    const float y = x[i] / divisor;
    top = y > top ? y : top;
    if (out) out[i] = y;
  }
  *most = top;
  return ok && top > -__builtin_inff();
}

inline int find(const float* x, int n, float value) {
  int i = 0;
  for (; i + kWidth <= n; i += kWidth)
    if (any(load(x + i) == all(value))) break;
  for (; i < n; ++i)
    if (x[i] == value) return i;
  return n;
}

inline double exp_sum(const float* x, int n, float most) {
  double total = 0.0;
  for (int i = 0; i < n; i += 1024) {
    const int end = i + 1024 < n ? i + 1024 : n;
    Floats sum{};
    int j = i;
    for (; j + kWidth <= end; j += kWidth) sum += exp(load(x + j) - most);
    total += sum_lanes(sum);
    for (; j < end; ++j) total += exp(all(x[j] - most))[0];
  }
  return total;
}

inline int collect(const float* x, int n, float above, float* out) {
  int count = 0, i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Ints mask = load(x + i) > all(above);
    if (!any(mask)) continue;
    for (int lane = 0; lane < kWidth; ++lane)
      if (mask[lane]) out[count++] = x[i + lane];
  }
  for (; i < n; ++i)
    if (x[i] > above) out[count++] = x[i];
  return count;
}

// Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011), a counter in each lane.
inline void threefry(const unsigned key[2], Words& a, Words& b) {
  constexpr int kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const unsigned keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  a += keys[0];
  b += keys[1];
#pragma GCC unroll 5
  for (unsigned round = 0; round < 5; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int turn = kTurns[round % 2][i];
      a += b;
      b = (b << turn | b >> (32 - turn)) ^ a;
    }
    a += keys[(round + 1) % 3];
    b += keys[(round + 2) % 3] + round + 1;
  }
}

// Standard Gumbel noise from 32 random bits: -log(-log(u)) with u in [0, 1).
inline Floats gumbel(Words bits) {
  Floats u = __builtin_convertvector(bits, Floats) * 0x1p-32f;
  u = u > all(0.99999994f) ? all(0.99999994f) : u;
  const Floats noise = -log(-log(u));
  return u > all(0.0f) ? noise : all(-__builtin_inff());
}

constexpr float kMostNoise = 17.0f;  // above -log(-log(1 - 2^-24))

// Where x + noise is greatest among the places with x >= threshold, the first of equals. Bit i of the
// noise is that of MLX's generator for (key, [n]): place i < n/2 is the first word of counter
// (i, i + n - n/2), place i + n - n/2 the second; the middle of an odd n is the first of (n/2, 0).
// Places that cannot win any more are passed over. `likeliest` is where x is greatest.
inline int noisy_best(const float* x, int n, float threshold, const unsigned key[2], int likeliest) {
  const int half = n / 2, second = n - half;
  Words lanes{};
  for (unsigned i = 0; i < kWidth; ++i) lanes[i] = i;
  float best = -__builtin_inff();
  int where = n;
  auto offer = [&](float value, int place) {
    if (value > best || (value == best && place < where)) best = value, where = place;
  };
  auto limit = [&] { return best - kMostNoise > threshold ? best - kMostNoise : threshold; };
  auto pairs = [&](int i, int count) {  // counters [i, i + count), both words
    const Floats none = all(-__builtin_inff()), bar = all(limit());
    const Floats low = count == kWidth ? load(x + i) : load_some(x + i, count);
    const Floats high = count == kWidth ? load(x + second + i) : load_some(x + second + i, count);
    if (!any((low >= bar) | (high >= bar))) return;
    Words a = lanes + static_cast<unsigned>(i), b = a + static_cast<unsigned>(second);
    threefry(key, a, b);
    const Floats one = low >= bar ? low + gumbel(a) : none, two = high >= bar ? high + gumbel(b) : none;
    if (!any((one >= all(best)) | (two >= all(best)))) return;
    for (int lane = 0; lane < count; ++lane) {
      if (one[lane] >= best) offer(one[lane], i + lane);
      if (two[lane] >= best) offer(two[lane], second + i + lane);
    }
  };
  auto middle = [&] {
    Words a = Words{} + static_cast<unsigned>(half), b{};
    threefry(key, a, b);
    if (x[half] >= threshold) offer(x[half] + gumbel(a)[0], half);
  };
  if (second > half) middle();
  if (likeliest < half || likeliest >= second) {  // a good start passes over most of the rest
    const int i = likeliest < half ? likeliest : likeliest - second;
    pairs(i, 1);
  }
  int i = 0;
  for (; i + kWidth <= half; i += kWidth) pairs(i, kWidth);
  if (i < half) pairs(i, half - i);
  return where < n ? where : likeliest;
}

}  // namespace ingle::INGLE_ISA
