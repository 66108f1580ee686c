// Causal attention of a few queries over one sequence's keys. Keys come in blocks of 64 aligned to
// absolute positions, softmax is kept online (Milakov and Gimelshein, 2018; Dao et al., 2022), and each
// query's operations are its own: tiles of queries share loads, never sums.
#pragma once

#include "kernels.h"
#include "rows.h"
#include "simd.h"

namespace ingle::INGLE_ISA {

#if defined(__AVX512F__)
constexpr int kQueries = 4;  // that share loads of keys and values
#else
constexpr int kQueries = 2;
#endif
constexpr int kKeyVectors = 4;                          // score vectors of one query in registers
constexpr int kKeysAtOnce = kKeyVectors * kWidth;       // 64, 32 or 16

template <int... I>
struct Lanes {};
#if defined(__AVX512F__)
using AllLanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif defined(__AVX2__)
using AllLanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using AllLanes = Lanes<0, 1, 2, 3>;
#endif

// One stage of a transposition: rows that differ in bit HALF of their number swap the lanes that differ
// from it. The masks must be constants for the compiler to find single instructions.
template <int HALF, int... I>
inline void exchange(Floats* v, Lanes<I...> lanes) {
  constexpr Ints kLow{(I & HALF ? kWidth + I - HALF : I)...}, kHigh{(I & HALF ? kWidth + I : I + HALF)...};
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i)
    if (!(i & HALF)) {
      const Floats a = v[i], b = v[i + HALF];
      v[i] = __builtin_shuffle(a, b, kLow);
      v[i + HALF] = __builtin_shuffle(a, b, kHigh);
    }
  if constexpr (HALF > 1) exchange<HALF / 2>(v, lanes);
}

// A kWidth by kWidth tile, rows at stride `from`, columns out at stride `to`.
inline void transpose(const float* in, long from, float* out, long to) {
  Floats v[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) v[i] = load(in + i * from);
  exchange<kWidth / 2>(v, AllLanes{});
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) store(out + i * to, v[i]);
}

// One key block in the forms that the loops read: keys [dim][64], values [64][padded dim].
struct KeyBlock {
  const float* keys;
  const float* values;
  long value_stride;
  int columns;  // that are there: a multiple of kWidth
};

template <class T>
inline float widen(T x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    const unsigned bits = static_cast<unsigned>(x) << 16;
    float out;
    __builtin_memcpy(&out, &bits, 4);
    return out;
  }
}

template <class T>
inline void widen_row(const T* in, int dim, int padded, float* out) {
  int d = 0;
  for (; d + kWidth <= dim; d += kWidth)
    if constexpr (sizeof(T) == 4)
      store(out + d, load(in + d));
    else
      store(out + d, from_bf16(load<Halves>(in + d)));
  for (; d < padded; ++d) out[d] = d < dim ? widen(in[d]) : 0.0f;
}

// Asks for the block after the one at column `first`, which `p` points to.
template <class T>
inline void fetch_ahead(const T* p, const AttentionJob& job, int first, int dim) {
  const int next = first + 2 * kKeyBlock <= job.columns ? kKeyBlock : 0;
  const char* from = reinterpret_cast<const char*>(p + static_cast<long>(kKeyBlock) * dim);
  for (long i = 0; i < static_cast<long>(next) * dim * static_cast<long>(sizeof(T)); i += 64) __builtin_prefetch(from + i);
}

// Columns [first, first + seen) of the cache, and those behind them that share a vector; what the cache
// does not have becomes zeros.
template <class T>
inline KeyBlock read_block(const AttentionJob& job, int first, int seen, float* scratch) {
  const int dim = job.dim, padded = (dim + 15) / 16 * 16;
  float* keys = scratch;
  float* values = scratch + static_cast<long>(kKeyBlock) * padded;
  const T* k = static_cast<const T*>(job.keys) + static_cast<long>(first) * dim;
  const T* v = static_cast<const T*>(job.values) + static_cast<long>(first) * dim;
  const int wanted = (seen + kWidth - 1) / kWidth * kWidth;
  const int count = job.columns - first < wanted ? job.columns - first : wanted;
  const float* rows = reinterpret_cast<const float*>(k);
  fetch_ahead(k, job, first, dim);
  fetch_ahead(v, job, first, dim);
  if (sizeof(T) != 4 || count < wanted || dim % kWidth != 0) {  // by way of the value area
    for (int row = 0; row < count; ++row) widen_row(k + static_cast<long>(row) * dim, dim, padded, values + row * padded);
    for (long i = static_cast<long>(count) * padded; i < static_cast<long>(wanted) * padded; ++i) values[i] = 0.0f;
    rows = values;
  }
  const long stride = rows == values ? padded : dim;
  for (int row = 0; row < wanted; row += kWidth)
    for (int d = 0; d < dim; d += kWidth)
      transpose(rows + row * stride + d, stride, keys + static_cast<long>(d) * kKeyBlock + row, kKeyBlock);
  if (sizeof(T) == 4 && dim % 16 == 0) return {keys, reinterpret_cast<const float*>(v), dim, wanted};
  for (int row = 0; row < count; ++row) widen_row(v + static_cast<long>(row) * dim, dim, padded, values + row * padded);
  return {keys, values, padded, wanted};
}

// What one query carries from block to block: the greatest score, the lanes' sums of weights, and the
// weighted values [padded dim].
struct Query {
  const float* q;
  float* out;
  float* state;  // [0] greatest, [16..32) sums, then weighted values
  int low, high; // columns [low, high) are seen
};

constexpr int kStateHeader = 32;

// Scores of N queries against VECTORS vectors of keys from column `at`: each a chain over the dimensions.
template <int N, int VECTORS>
inline void score_columns(const AttentionJob& job, const KeyBlock& block, Query* const* queries, int at,
                          float (*out)[kKeyBlock]) {
  Floats sum[N][VECTORS] = {};
  const float* keys = block.keys + at;
  for (int d = 0; d < job.dim; ++d, keys += kKeyBlock)
    for (int i = 0; i < VECTORS; ++i) {
      const Floats key = load(keys + i * kWidth);
      for (int n = 0; n < N; ++n) sum[n][i] = fma(all(queries[n]->q[d]), key, sum[n][i]);
    }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) store(out[n] + at + i * kWidth, sum[n][i]);
}

template <int N>
inline void scores_of(const AttentionJob& job, const KeyBlock& block, Query* const* queries, float (*out)[kKeyBlock]) {
  int at = 0;
  for (; at + kKeysAtOnce <= block.columns; at += kKeysAtOnce) score_columns<N, kKeyVectors>(job, block, queries, at, out);
  for (; at < block.columns; at += kWidth) score_columns<N, 1>(job, block, queries, at, out);
}

// Scores become weights in place; the query's state is scaled to the new greatest score.
inline void soften(const AttentionJob& job, int first, int columns, Query& query, float* scores) {
  Floats positions;
  for (int i = 0; i < kWidth; ++i) positions[i] = static_cast<float>(i);
  const float low = static_cast<float>(query.low - first), high = static_cast<float>(query.high - first);
  const Floats none = all(-__builtin_inff());
  Floats most = none;
  const int vectors = columns / kWidth;  // those past it would weigh nothing
  for (int i = 0; i < vectors; ++i) {
    Floats s = load(scores + i * kWidth) * job.scale;
    if (job.softcap > 0.0f) s = tanh(s / job.softcap) * job.softcap;
    const Floats at = positions + static_cast<float>(i * kWidth);
    s = at < all(low) ? none : s;
    s = at >= all(high) ? none : s;
    store(scores + i * kWidth, s);
    most = maximum(s, most);  // a NaN loses here and shows in the sum
  }
  const float before = query.state[0];
  float greatest = max_lanes(most);
  greatest = greatest > before ? greatest : before;
  if (greatest == -__builtin_inff()) greatest = -3.0e38f;  // every score is -inf or NaN
  query.state[0] = greatest;
  const float shrink = exp(all(before - greatest))[0];
  Floats sums[4] = {};
  for (int i = 0; i < vectors; ++i) {
    const Floats weight = exp(load(scores + i * kWidth) - greatest);
    store(scores + i * kWidth, weight);
    sums[i % 4] += weight;
  }
  float* state = query.state + 16;
  store(state, fma(load(state), all(shrink), (sums[0] + sums[1]) + (sums[2] + sums[3])));
  if (shrink != 1.0f) {
    const int padded = (job.dim + 15) / 16 * 16;
    for (int d = 0; d < padded; d += kWidth) {
      float* p = query.state + kStateHeader + d;
      store(p, load(p) * shrink);
    }
  }
}

// Weighted values of block columns [low, high) into the states of N queries.
template <int N, int VECTORS>
inline void mix_columns(const KeyBlock& block, Query* const* queries, float (*weights)[kKeyBlock], int low, int high,
                        int d) {
  Floats sum[N][VECTORS];
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) sum[n][i] = load(queries[n]->state + kStateHeader + d + i * kWidth);
  for (int key = low; key < high; ++key) {
    Floats value[VECTORS];
    for (int i = 0; i < VECTORS; ++i) value[i] = load(block.values + key * block.value_stride + d + i * kWidth);
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < VECTORS; ++i) sum[n][i] = fma(all(weights[n][key]), value[i], sum[n][i]);
  }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) store(queries[n]->state + kStateHeader + d + i * kWidth, sum[n][i]);
}

template <int N>
inline void mix(const AttentionJob& job, const KeyBlock& block, Query* const* queries, float (*weights)[kKeyBlock],
                int low, int high) {
  const int padded = (job.dim + 15) / 16 * 16;
  int d = 0;
  for (; d + 4 * kWidth <= padded; d += 4 * kWidth) mix_columns<N, 4>(block, queries, weights, low, high, d);
  for (; d < padded; d += kWidth) mix_columns<N, 1>(block, queries, weights, low, high, d);
}

template <int N>
inline void tile_of(const AttentionJob& job, const KeyBlock& block, int first, Query* const* queries) {
  float scores[N][kKeyBlock];
  scores_of<N>(job, block, queries, scores);
  bool whole = true;
  for (int n = 0; n < N; ++n) {
    whole = whole && queries[n]->low <= first && queries[n]->high >= first + kKeyBlock;
    soften(job, first, block.columns, *queries[n], scores[n]);
  }
  if (whole) return mix<N>(job, block, queries, scores, 0, kKeyBlock);
  for (int n = 0; n < N; ++n) {
    const int low = queries[n]->low > first ? queries[n]->low - first : 0;
    const int high = queries[n]->high < first + kKeyBlock ? queries[n]->high - first : kKeyBlock;
    mix<1>(job, block, queries + n, scores + n, low, high);
  }
}

template <int N>
inline void tile_of_up_to(const AttentionJob& job, const KeyBlock& block, int first, Query* const* queries, int count) {
  if constexpr (N > 0) {
    if (count == N) return tile_of<N>(job, block, first, queries);
    tile_of_up_to<N - 1>(job, block, first, queries, count);
  }
}

inline void attention(const AttentionJob& job) {
  const int dim = job.dim, padded = (dim + 15) / 16 * 16, count = (job.to - job.from) * job.heads;
  float* blocks = job.scratch;
  float* states = blocks + static_cast<long>(kKeyBlock) * padded * 2;
  const long state_size = kStateHeader + padded;
  auto query = [&](int n) {
    const int i = job.from + n / job.heads, head = n % job.heads, position = job.offset + i;
    const int end = job.ends ? job.ends[i] : position + 1;
    const int start = job.window > 0 && position - job.window + 1 > job.base ? position - job.window + 1 : job.base;
    return Query{job.q + i * job.q_token + head * job.q_head, job.out + i * job.out_token + head * job.out_head,
                 states + n * state_size, start - job.base, end - job.base};
  };
  int low = 0x7fffffff, high = 0;  // columns that any query sees
  for (int n = 0; n < count; ++n) {
    const Query q = query(n);
    low = q.low < low ? q.low : low;
    high = q.high > high ? q.high : high;
    for (int i = 0; i < state_size; ++i) q.state[i] = 0.0f;
    q.state[0] = -__builtin_inff();
  }
  for (int first = low / kKeyBlock * kKeyBlock; first < high; first += kKeyBlock) {
    const int seen = high - first < kKeyBlock ? high - first : kKeyBlock;
    const KeyBlock block = job.halves ? read_block<unsigned short>(job, first, seen, blocks)
                                      : read_block<float>(job, first, seen, blocks);
    for (int n = 0; n < count;) {
      Query tile[kQueries];
      Query* tile_at[kQueries];
      int members = 0;
      for (; n < count && members < kQueries; ++n) {
        tile[members] = query(n);
        if (tile[members].low >= first + kKeyBlock || tile[members].high <= first) continue;
        tile_at[members] = &tile[members];
        ++members;
      }
      tile_of_up_to<kQueries>(job, block, first, tile_at, members);
    }
  }
  for (int n = 0; n < count; ++n) {
    const Query q = query(n);
    const float total = sum_lanes(load(q.state + 16));
    each(dim, q.out, [&](auto at) { return at(q.state + kStateHeader) / total; });
  }
}

}  // namespace ingle::INGLE_ISA
