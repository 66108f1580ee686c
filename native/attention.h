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
constexpr int kKeyVectors = 4;                     // score vectors of one query in registers
constexpr int kKeysAtOnce = kKeyVectors * kWidth;  // 64, 32 or 16

// Keys and values of one key head in one block.
template <class T>
struct KeyBlock {
  const T* keys;    // blocks of 16 columns, each [dim][16]
  const T* values;  // [columns][dim]
  int dim;
  int columns;      // to be looked at: a multiple of kWidth
};

template <class T>
inline Floats load_store(const T* p) {
  if constexpr (sizeof(T) == 4)
    return load(p);
  else
    return from_bf16(load<Halves>(p));
}

template <class T>
inline Floats load_store_some(const T* p, int count) {
  T lanes[kWidth] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load_store(lanes);
}

template <class T>
inline KeyBlock<T> block_at(const AttentionJob& job, int first, int seen) {
  const char* block = job.blocks[first / kKeyBlock];
  return {reinterpret_cast<const T*>(block + job.keys_at), reinterpret_cast<const T*>(block + job.values_at), job.dim,
          (seen + kWidth - 1) / kWidth * kWidth};
}

// Asks for a block before it is met, which few queries would wait for.
inline void fetch_ahead(const AttentionJob& job, int first) {
  const char* block = job.blocks[first / kKeyBlock];
  const size_t size = static_cast<size_t>(kKeyBlock) * job.dim * (job.halves ? 2 : 4);
  for (size_t i = 0; i < size; i += 64) {
    __builtin_prefetch(block + job.keys_at + i);
    __builtin_prefetch(block + job.values_at + i);
  }
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
template <int N, int VECTORS, class T>
inline void score_columns(const KeyBlock<T>& block, Query* const* queries, int at, float (*out)[kKeyBlock]) {
  Floats sum[N][VECTORS] = {};
  const T* keys[VECTORS];
  for (int i = 0; i < VECTORS; ++i) {
    const int column = at + i * kWidth;
    keys[i] = block.keys + static_cast<long>(column / kLanes) * kLanes * block.dim + column % kLanes;
  }
  for (int d = 0; d < block.dim; ++d)
    for (int i = 0; i < VECTORS; ++i) {
      const Floats key = load_store(keys[i] + d * kLanes);
      for (int n = 0; n < N; ++n) sum[n][i] = fma(all(queries[n]->q[d]), key, sum[n][i]);
    }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) store(out[n] + at + i * kWidth, sum[n][i]);
}

template <int N, class T>
inline void scores_of(const KeyBlock<T>& block, Query* const* queries, float (*out)[kKeyBlock]) {
  int at = 0;
  for (; at + kKeysAtOnce <= block.columns; at += kKeysAtOnce) score_columns<N, kKeyVectors>(block, queries, at, out);
  for (; at < block.columns; at += kWidth) score_columns<N, 1>(block, queries, at, out);
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

// Weighted values of block columns [low, high) into the states of N queries, dimensions from `d` on.
// With `rest`, one vector of that many dimensions.
template <int N, int VECTORS, class T>
inline void mix_columns(const KeyBlock<T>& block, Query* const* queries, float (*weights)[kKeyBlock], int low, int high,
                        int d, int rest = kWidth) {
  Floats sum[N][VECTORS];
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) sum[n][i] = load(queries[n]->state + kStateHeader + d + i * kWidth);
  for (int key = low; key < high; ++key) {
    const T* values = block.values + static_cast<long>(key) * block.dim + d;
    for (int i = 0; i < VECTORS; ++i) {
      const Floats value = rest < kWidth ? load_store_some(values, rest) : load_store(values + i * kWidth);
      for (int n = 0; n < N; ++n) sum[n][i] = fma(all(weights[n][key]), value, sum[n][i]);
    }
  }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < VECTORS; ++i) store(queries[n]->state + kStateHeader + d + i * kWidth, sum[n][i]);
}

template <int N, class T>
inline void mix(const KeyBlock<T>& block, Query* const* queries, float (*weights)[kKeyBlock], int low, int high) {
  int d = 0;
  for (; d + 4 * kWidth <= block.dim; d += 4 * kWidth) mix_columns<N, 4>(block, queries, weights, low, high, d);
  for (; d + kWidth <= block.dim; d += kWidth) mix_columns<N, 1>(block, queries, weights, low, high, d);
  if (d < block.dim) mix_columns<N, 1>(block, queries, weights, low, high, d, block.dim - d);
}

template <int N, class T>
inline void tile_of(const AttentionJob& job, const KeyBlock<T>& block, int first, Query* const* queries) {
  float scores[N][kKeyBlock];
  scores_of<N>(block, queries, scores);
  bool whole = true;
  for (int n = 0; n < N; ++n) {
    whole = whole && queries[n]->low <= first && queries[n]->high >= first + kKeyBlock;
    soften(job, first, block.columns, *queries[n], scores[n]);
  }
  if (whole) return mix<N>(block, queries, scores, 0, kKeyBlock);
  for (int n = 0; n < N; ++n) {
    const int low = queries[n]->low > first ? queries[n]->low - first : 0;
    const int high = queries[n]->high < first + kKeyBlock ? queries[n]->high - first : kKeyBlock;
    mix<1>(block, queries + n, scores + n, low, high);
  }
}

template <int N, class T>
inline void tile_of_up_to(const AttentionJob& job, const KeyBlock<T>& block, int first, Query* const* queries,
                          int count) {
  if constexpr (N > 0) {
    if (count == N) return tile_of<N>(job, block, first, queries);
    tile_of_up_to<N - 1>(job, block, first, queries, count);
  }
}

template <class T>
void attention_over(const AttentionJob& job) {
  const int dim = job.dim, padded = (dim + 15) / 16 * 16, count = (job.to - job.from) * job.heads;
  const long state_size = kStateHeader + padded;
  auto query = [&](int n) {
    const int i = job.from + n / job.heads, head = n % job.heads, position = job.offset + i;
    const int end = job.ends ? job.ends[i] : position + 1;
    const int start = job.window > 0 && position - job.window + 1 > job.base ? position - job.window + 1 : job.base;
    return Query{job.q + i * job.q_token + head * job.q_head, job.out + i * job.out_token + head * job.out_head,
                 job.scratch + n * state_size, start - job.base, end - job.base};
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
    const KeyBlock<T> block = block_at<T>(job, first, high - first < kKeyBlock ? high - first : kKeyBlock);
    if (count <= kQueries && first + kKeyBlock < high) fetch_ahead(job, first + kKeyBlock);
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

inline void attention(const AttentionJob& job) {
  job.halves ? attention_over<unsigned short>(job) : attention_over<float>(job);
}

}  // namespace ingle::INGLE_ISA
