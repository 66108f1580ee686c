// Phases of a program: what a team does between two barriers. Primitives and whole decoder layers are
// made of the same phases, so they give the same bits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace ingle {

// The instruction set in use, and those that this CPU has, widest first.
const Kernels& kernels();
std::vector<std::string> isas();
void set_isa(const std::string& name);  // throws std::invalid_argument

// A product with its bias [n], or null.
struct Linear {
  std::shared_ptr<Packed> packed;
  const float* bias;

  int n() const { return packed->weight().n; }
  int k() const { return packed->weight().k; }
};

// Activations made ready for products: memory for `rows` rows of `k`.
class Prepared {
 public:
  Prepared() = default;
  Prepared(Arena& arena, int rows, int k);

  void set_row(const Kernels& kernels, int row, const float* x);  // may run for several rows at once
  const Activations& activations() const { return view_; }

  float* row(int i) { return rows_ + static_cast<long>(i) * view_.k; }  // where x may be written first

 private:
  Activations view_{};
  float* rows_ = nullptr;
  unsigned short* halves_ = nullptr;
  float* sums_[4] = {};
};

// Work on rows: a few at a time where there are many.
template <class Work>
void each_row(Team& team, int count, const Work& work) {
  const int step = count / (team.size() * 4) > 1 ? count / (team.size() * 4) : 1;
  team.parts((count + step - 1) / step, [&](int part) {
    for (int i = part * step; i < count && i < (part + 1) * step; ++i) work(i);
  });
}

// Blocks and rows of a product in parts: large enough to reuse what is in the caches, small enough to share.
struct Split {
  static constexpr int kMostRows = 64, kMostBlocks = 4;

  explicit Split(int rows) : row_parts((rows + kMostRows - 1) / kMostRows), rows(rows) {}
  int parts_of(int blocks) const { return (blocks + kMostBlocks - 1) / kMostBlocks * row_parts; }
  // Rows [first, last) and blocks [from, to) of part `i` of a weight with `blocks` blocks.
  void place(int i, int blocks, int& first, int& last, int& from, int& to) const {
    const int chunk = i / row_parts, row_part = i % row_parts;
    first = rows * row_part / row_parts, last = rows * (row_part + 1) / row_parts;
    from = chunk * kMostBlocks, to = from + kMostBlocks < blocks ? from + kMostBlocks : blocks;
  }

  int row_parts, rows;
};

// out[r] = [x W0^T + b0 | x W1^T + b1 | ...] for every row; then finish(row, column, count, out) on each
// run of finished columns.
template <class Finish>
void products(Team& team, const Kernels& kernels, const std::vector<Linear>& linears, const Activations& in, int rows,
              float* out, long stride, const Finish& finish) {
  const Split split(rows);
  int total = 0;
  for (const Linear& linear : linears) total += split.parts_of(linear.packed->weight().blocks());
  team.parts(total, [&](int part) {
    int column = 0;
    const Linear* linear = linears.data();
    for (int parts; part >= (parts = split.parts_of(linear->packed->weight().blocks())); ++linear) {
      part -= parts;
      column += linear->n();
    }
    const Weight& w = linear->packed->weight();
    int first, last, from, to;
    split.place(part, w.blocks(), first, last, from, to);
    const int at = from * kBlock, end = to * kBlock < w.n ? to * kBlock : w.n;
    kernels.product(w, in, {first, last - first, from, to - from, out + first * stride + column + at, stride});
    for (int r = first; r < last; ++r) {
      float* y = out + r * stride + column + at;
      if (linear->bias) kernels.add(y, linear->bias + at, 1.0f, end - at, y);
      finish(r, column + at, end - at, y);
    }
  });
}

// out[r] = gate(x G^T) * (x U^T): [rows, n], for gate and up of the same shape.
void gated_products(Team& team, const Kernels& kernels, const Linear& gate, const Linear& up, Gate kind,
                    const Activations& in, int rows, float* out);

// Floats of this thread's own, holding anything; the next call may move them.
float* thread_scratch(size_t count);

// Cosines and sines of position * inv_freq[i], times `scale`: [half] each. Angles in float32.
void angles(int position, const float* inv_freq, int half, float scale, float* cos, float* sin);

// Keys or values of one layer: [rows, heads, columns, dim], float32 or bfloat16.
struct Store {
  void* data;
  int heads, columns, dim;
  bool halves;

  const void* head(long row, int h) const { return at(row, h, 0); }
  void write(const Kernels& kernels, long row, int h, int column, const float* x) const;

 private:
  void* at(long row, int h, long column) const {
    const long element = ((row * heads + h) * columns + column) * dim;
    return static_cast<char*>(data) + element * (halves ? 2 : 4);
  }
};

// One row's part of a step: queries at positions [offset, offset + length).
struct Sequence {
  int row;     // of its stores
  int length;
  int offset;
  int base;    // position of column 0
};

struct AttentionShape {
  int heads, kv_heads, dim;
  float scale, softcap;
  int window;
};

// Parts of attention: queries of one sequence and of some heads that share a key head.
struct AttentionPart {
  int sequence, head, heads, from, to;
};

std::vector<AttentionPart> attention_parts(const std::vector<Sequence>& sequences, const AttentionShape& shape,
                                           int threads);

// One part of attention. q and out are laid out [tokens][heads][dim] by the strides; they point at the
// sequence's first token.
void attend(const Kernels& kernels, const AttentionPart& part, const Sequence& sequence, const AttentionShape& shape,
            const Store& keys, const Store& values, const int* ends, const float* q, long q_token, long q_head,
            float* out, long out_token, long out_head);

}  // namespace ingle
