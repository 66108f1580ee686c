// Products of activation rows with a packed weight: tiles of rows and blocks, and their epilogue-free
// results. Every output's operations depend on its weight's form and on K alone, never on the tile.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace ingle::INGLE_ISA {

// Rows that share one reading of a weight block, and blocks that share one reading of the rows: as many
// sums as the registers hold.
#if defined(__AVX512F__)
constexpr int kTile = 8, kTogether = 2;
#elif defined(__AVX2__)
constexpr int kTile = 4, kTogether = 1;
#elif defined(__aarch64__)
constexpr int kTile = 4, kTogether = 1;
#else
constexpr int kTile = 2, kTogether = 1;
#endif

inline void store_lanes(float* out, const Floats* v, int count) {
  if (count >= kLanes) {
    for (int i = 0; i < kParts; ++i) store(out + i * kWidth, v[i]);
    return;
  }
  float lanes[kLanes];
  for (int i = 0; i < kParts; ++i) store(lanes + i * kWidth, v[i]);
  for (int i = 0; i < count; ++i) out[i] = lanes[i];
}

// Sixteen scales or biases.
template <bool WIDE>
inline void load_scales(const unsigned char* p, Floats* out) {
  for (int i = 0; i < kParts; ++i)
    if constexpr (WIDE)
      out[i] = load<Floats>(p + i * kWidth * 4);
    else
      out[i] = from_f16(load<Halves>(p + i * kWidth * 2));
}

// Where the codes of groups begin, and how the sums over groups are laid out.
struct Groups {
  int count, size;
  long bytes, scale_bytes, header;
  const float* sums;  // of row 0

  Groups(const Weight& w, const Activations& in) {
    size = w.group;
    count = w.k / size;
    scale_bytes = kLanes * (w.wide ? 4 : 2);
    header = scale_bytes * (w.shifted ? 2 : 1);
    bytes = header + code_bytes(w.bits, size);
    sums = in.sums[size == 16 ? 0 : size == 32 ? 1 : size == 64 ? 2 : 3];
  }
};

#if defined(__AVX512BF16__)
#include "product_codes_avx512.h"
#else
#include "product_codes.h"
#endif

constexpr int kRun = 256;

// Floats: one multiply-add after the other along runs of K, whose sums are then added: one chain over
// thousands of inputs would lose a digit.
template <Form FORM, int ROWS, int BLOCKS>
void floats_tile(const Weight& w, const Activations& in, const Patch& at) {
  constexpr int kElement = FORM == Form::f32 ? 4 : 2;
  const float* x = in.x + at.row * in.stride;
  const unsigned char* p = w.data + at.block * w.block_bytes;
  Floats total[ROWS][BLOCKS][kParts] = {};
  for (int first = 0; first < w.k; first += kRun) {
    const int end = first + kRun < w.k ? first + kRun : w.k;
    Floats sum[ROWS][BLOCKS][kParts] = {};
    for (int k = first; k < end; ++k, p += kLanes * kElement)
      for (int b = 0; b < BLOCKS; ++b)
        for (int i = 0; i < kParts; ++i) {
          const unsigned char* from = p + b * w.block_bytes + i * kWidth * kElement;
          Floats v;
          if constexpr (FORM == Form::f32)
            v = load<Floats>(from);
          else if constexpr (FORM == Form::f16)
            v = from_f16(load<Halves>(from));
          else
            v = from_bf16(load<Halves>(from));
          for (int r = 0; r < ROWS; ++r) sum[r][b][i] = fma(v, all(x[r * in.stride + k]), sum[r][b][i]);
        }
    for (int r = 0; r < ROWS; ++r)
      for (int b = 0; b < BLOCKS; ++b)
        for (int i = 0; i < kParts; ++i) total[r][b][i] += sum[r][b][i];
  }
  for (int r = 0; r < ROWS; ++r)
    for (int b = 0; b < BLOCKS; ++b)
      store_lanes(at.out + r * at.stride + b * kLanes, total[r][b], w.n - (at.block + b) * kLanes);
}

template <int ROWS, int BLOCKS>
void tile(const Weight& w, const Activations& in, const Patch& at) {
  switch (w.form) {
    case Form::f32: return floats_tile<Form::f32, ROWS, BLOCKS>(w, in, at);
    case Form::f16: return floats_tile<Form::f16, ROWS, BLOCKS>(w, in, at);
    case Form::bf16: return floats_tile<Form::bf16, ROWS, BLOCKS>(w, in, at);
    case Form::codes: break;
  }
  switch (w.bits) {
    case 4: return codes_tile<4, ROWS, BLOCKS>(w, in, at);
    case 5: return codes_tile<5, ROWS, BLOCKS>(w, in, at);
    case 6: return codes_tile<6, ROWS, BLOCKS>(w, in, at);
    default: return codes_tile<8, ROWS, BLOCKS>(w, in, at);
  }
}

// `rows` rows against every block of the patch. One row takes block after block: a single stream of memory.
template <int ROWS>
void rows_of_blocks(const Weight& w, const Activations& in, Patch at, int rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return rows_of_blocks<ROWS - 1>(w, in, at, rows);
  if (rows < ROWS) return;
  auto advance = [&](int blocks) { at.block += blocks, at.blocks -= blocks, at.out += blocks * kLanes; };
  if constexpr (ROWS > 2 && kTogether > 1)
    for (; at.blocks >= kTogether; advance(kTogether)) tile<ROWS, kTogether>(w, in, at);
  for (; at.blocks > 0; advance(1)) tile<ROWS, 1>(w, in, at);
}

inline void product(const Weight& w, const Activations& in, const Patch& patch) {
  const int tiles = (patch.rows + kTile - 1) / kTile;
  if (tiles <= 1) return rows_of_blocks<kTile>(w, in, patch, patch.rows);
  // Block by block, so that a block's codes stay in the first cache while all rows pass.
  for (int b = 0; b < patch.blocks; b += kTogether)
    for (int t = 0; t < tiles; ++t) {
      const int first = patch.rows * t / tiles, last = patch.rows * (t + 1) / tiles;
      const int blocks = patch.blocks - b < kTogether ? patch.blocks - b : kTogether;
      const Patch at{patch.row + first, last - first, patch.block + b, blocks,
                     patch.out + first * patch.stride + b * kLanes, patch.stride};
      rows_of_blocks<kTile>(w, in, at, last - first);
    }
}

}  // namespace ingle::INGLE_ISA
