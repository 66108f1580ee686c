// Phases of a program: what a team does between two barriers. Primitives and whole decoder layers are
// made of the same phases, so they give the same bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv.h"
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

// Makes `rows` rows of x ready, then runs `product`, whose weights have `size` elements, on the team.
void with_prepared(const float* x, int rows, int k, long size,
                   const std::function<void(Team&, const Activations&)>& product);

// Work on rows: a few at a time where there are many.
template <class Work>
void each_row(Team& team, int count, const Work& work) {
  const int step = count / (team.size() * 4) > 1 ? count / (team.size() * 4) : 1;
  team.parts((count + step - 1) / step, [&](int part) {
    for (int i = part * step; i < count && i < (part + 1) * step; ++i) work(i);
  });
}

// A product in parts, each some rows by a run of blocks. Few rows are bound by memory: long runs, which
// the hardware prefetches well. Many rows reuse what is in the caches: short runs.
class Split {
 public:
  static constexpr int kMostRows = 64;

  Split(int rows, int blocks, int threads) : rows_(rows), blocks_(blocks) {
    row_parts_ = (rows + kMostRows - 1) / kMostRows;
    const int fair = blocks * row_parts_ / (threads * 3);
    const int most = row_parts_ > 1 ? 8 : 1024;
    run_ = fair < 1 ? 1 : fair > most ? most : fair;
  }

  struct Part {
    int first_row, last_row, first_block, last_block;
  };

  int count() const { return (blocks_ + run_ - 1) / run_ * row_parts_; }

  Part operator[](int i) const {
    const int run = i / row_parts_, part = i % row_parts_, end = (run + 1) * run_;
    return {static_cast<int>(static_cast<long>(rows_) * part / row_parts_),
            static_cast<int>(static_cast<long>(rows_) * (part + 1) / row_parts_), run * run_, end < blocks_ ? end : blocks_};
  }

 private:
  int rows_, blocks_, row_parts_, run_;
};

// out[r] = [x W0^T + b0 | x W1^T + b1 | ...] for every row; then finish(row, column, count, out) on each
// run of finished columns.
template <class Finish>
void products(Team& team, const Kernels& kernels, const std::vector<Linear>& linears, const Activations& in, int rows,
              float* out, long stride, const Finish& finish) {
  int blocks = 0;
  for (const Linear& linear : linears) blocks += linear.packed->weight().blocks();
  const Split split(rows, blocks, team.size());
  team.parts(split.count(), [&](int i) {
    const Split::Part part = split[i];
    int column = 0, before = 0;  // of the linear's first output, of its first block
    for (const Linear& linear : linears) {
      const Weight& w = linear.packed->weight();
      const int from = part.first_block > before ? part.first_block - before : 0;
      const int to = part.last_block - before < w.blocks() ? part.last_block - before : w.blocks();
      if (from < to) {
        const int at = from * kBlock, end = to * kBlock < w.n ? to * kBlock : w.n;
        float* y = out + part.first_row * stride + column + at;
        kernels.product(w, in, {part.first_row, part.last_row - part.first_row, from, to - from, y, stride});
        for (int r = part.first_row; r < part.last_row; ++r, y += stride) {
          if (linear.bias) kernels.add(y, linear.bias + at, 1.0f, end - at, y);
          finish(r, column + at, end - at, y);
        }
      }
      column += linear.n();
      before += w.blocks();
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

// One row's part of a step: queries at positions [offset, offset + length).
struct Sequence {
  int length;
  int offset;
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
            const KVSpan& span, int layer, const int* ends, const float* q, long q_token, long q_head,
            float* out, long out_token, long out_head);

}  // namespace ingle
