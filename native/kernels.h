// What the arithmetic units read and write, and the table of functions that each offers. One unit is
// compiled for each instruction set; the rest of the extension calls through the table.
#pragma once

#include <cstddef>

namespace ingle {

constexpr int kBlock = 16;     // outputs in a block of a packed weight
constexpr int kKeyBlock = 64;  // key positions that attention takes at a time, aligned to position 0

enum class Form : unsigned char { codes, f32, f16, bf16 };

// Bytes that one group of codes takes for 16 lanes: the four low bits, the bits above them, all.
static constexpr long low_bytes(int group) { return group * 8L; }
static constexpr long high_bytes(int bits, int group) { return bits == 5 ? group * 2L : bits == 6 ? group * 4L : 0; }
static constexpr long code_bytes(int bits, int group) {
  return bits == 8 ? group * 16L : low_bytes(group) + high_bytes(bits, group);
}

// A matrix [n, k] in blocks of 16 outputs, each block contiguous, so that one thread streams it.
//
// Codes: for every group of inputs, 16 scales, then 16 biases where `shifted`, both float16 or, where
// `wide`, float32; then the codes. value = scale * (code - zero) + bias.
//   4, 5, 6 bits: for every 8 inputs one 32-bit word a lane, whose low half holds the low four bits of
//   inputs 0, 2, 4, 6 and whose high half those of inputs 1, 3, 5, 7; then, for every 32 (5 bits) or
//   16 (6 bits) inputs, one word a lane with the higher bits of even (low half) and odd (high half).
//   8 bits: for every pair of inputs, two signed bytes a lane: code - 128.
// Floats: [k][16] elements.
struct Weight {
  const unsigned char* data;
  long block_bytes;
  int n, k;
  Form form;
  unsigned char bits;
  bool shifted, wide;
  int group;
  float zero;

  int blocks() const { return (n + kBlock - 1) / kBlock; }
};

// Activations [rows, k] as products read them. `halves` (bfloat16) and `sums` are there where the
// table says `reads_halves`, and where a weight is shifted or has a zero.
struct Activations {
  const float* x;
  long stride;                  // of x, in elements
  const unsigned short* halves; // [rows, k]
  const float* sums[4];         // [rows, k >> (4 + i)]: over 16, 32, 64, 128 inputs
  int k;
};

// One tile's worth of a product: `rows` rows from `row`, `blocks` blocks from `block`.
struct Patch {
  int row, rows, block, blocks;
  float* out;  // of row `row`, block `block`
  long stride; // between rows of out
};

enum class Gate : int { silu, gelu_tanh };

// Queries [from, to) of `heads` heads (all of one key head) of one sequence, over its keys.
struct AttentionJob {
  const float* q;       // query i of head h at q + i * q_token + h * q_head
  long q_token, q_head;
  float* out;           // likewise
  long out_token, out_head;
  int heads, dim;
  int from, to;
  const char* const* blocks;  // of kKeyBlock positions each, from `base` on
  size_t keys_at, values_at;  // bytes from a block's start to this head's: see KVShape
  bool halves;          // keys and values are bfloat16
  int base;             // a multiple of kKeyBlock
  int offset;           // position of query 0
  int window;           // a query at p sees positions above p - window; 0: all
  const int* ends;      // query i sees positions below ends[i]; null: up to its own
  float scale, softcap; // softcap 0: none
  float* scratch;       // attention_scratch(dim, queries) floats
};

struct Kernels {
  const char* name;
  bool reads_halves;  // products with codes read bfloat16 activations
  void (*prepare)(const float* x, int k, unsigned short* halves, float* const sums[4]);
  void (*product)(const Weight& weight, const Activations& in, const Patch& patch);
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*rotate)(const float* x, const float* cos, const float* sin, int dim, float* out);
  void (*gate)(const float* gate, const float* up, int n, Gate kind, float* out);
  void (*add)(const float* x, const float* y, float scale, int n, float* out);  // x + scale * y
  void (*softcap)(float* x, int n, float cap);
  void (*to_bf16)(const float* x, int n, unsigned short* out);
  void (*attention)(const AttentionJob& job);
  // x / divisor into out (or nowhere) and its greatest value. False where x holds NaN or +inf, or nothing
  // but -inf.
  bool (*scaled)(const float* x, int n, float divisor, float* out, float* most);
  int (*find)(const float* x, int n, float value);  // the first place of `value`, or n
  double (*exp_sum)(const float* x, int n, float most);  // sum of e^(x - most)
  int (*collect)(const float* x, int n, float above, float* out);  // values greater than `above`; their count
  int (*noisy_best)(const float* x, int n, float threshold, const unsigned key[2], int likeliest);
};

// Floats of scratch for one attention job of `queries` (times heads) queries.
constexpr long attention_scratch(int dim, long queries) { return queries * ((dim + 15) / 16 * 16 + 32); }

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_neon;

}  // namespace ingle
