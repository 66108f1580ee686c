#include "layer.h"

#include <algorithm>
#include <map>

namespace ingle {
namespace {

// Tables [tokens][half] of one rotation.
struct Angles {
  float *cos, *sin;
  int half;
};

// One pass of a step through some layers. Its memory is enough for the largest of them.
class Run {
 public:
  Run(const std::vector<std::shared_ptr<const Layer>>& layers, const Step& step, float* hidden, int size)
      : k_(kernels()), layers_(layers), step_(step), hidden_(hidden), size_(size) {
    for (const StepGroup& group : step.groups) {
      for (int r = 0; r < group.rows; ++r) {
        for (int i = 0; i < group.length; ++i) token_row_.push_back(static_cast<int>(sequences_.size()));
        sequences_.push_back({group.length, step.offsets[sequences_.size()]});
        first_token_.push_back(tokens_);
        tokens_ += group.length;
      }
    }
  }

  void take(Arena& arena) {
    int widest = 0;
    for (const auto& layer : layers_) {
      const AttentionShape& a = layer->attention;
      widest = std::max({widest, (a.heads + 2 * a.kv_heads) * a.dim, step_.side_width});
      Angles& table = angles_[layer->rope.get()];
      if (!table.cos) {
        table.half = a.dim / 2;
        table.cos = arena.take<float>(static_cast<long>(tokens_) * table.half);
        table.sin = arena.take<float>(static_cast<long>(tokens_) * table.half);
      }
    }
    normed_ = Prepared(arena, tokens_, size_);
    qkv_ = arena.take<float>(static_cast<long>(tokens_) * widest);
    branch_ = arena.take<float>(static_cast<long>(tokens_) * size_);
    for (const auto& layer : layers_)  // prepared memory is laid out by its width
      for (const int width : {layer->attention.heads * layer->attention.dim, layer->gate.n(), step_.side_width})
        if (width == 0) continue;
        else if (auto [it, fresh] = by_width_.try_emplace(width); fresh) it->second = Prepared(arena, tokens_, width);
  }

  // About how many.
  long multiplications() const {
    long count = 0;
    for (const auto& layer : layers_) {
      for (const auto& linear : layer->qkv) count += static_cast<long>(tokens_) * linear.k() * linear.n();
      for (const Linear* linear : {&layer->o, &layer->gate, &layer->up, &layer->down})
        count += static_cast<long>(tokens_) * linear->k() * linear->n();
      const AttentionShape& shape = layer->attention;
      for (const Sequence& s : sequences_) {
        const long end = s.offset + s.length, keys = shape.window > 0 ? std::min<long>(end, shape.window) : end;
        count += 2 * s.length * keys * shape.heads * shape.dim;
      }
    }
    return count;
  }

  void run(Team& team) {
    for (const auto& [rope, table] : angles_)
      each_row(team, tokens_, [&](int t) {
        angles(position(t), rope->inv_freq.data(), table.half, rope->scale,
               table.cos + static_cast<long>(t) * table.half, table.sin + static_cast<long>(t) * table.half);
      });
    for (size_t i = 0; i < layers_.size(); ++i) run_layer(team, *layers_[i], i);
  }

 private:
  int position(int token) const {
    const int row = token_row_[token];
    return step_.offsets[row] + token - first_token_[row];
  }

  float* hidden(int t) { return hidden_ + static_cast<long>(t) * size_; }
  float* branch(int t) { return branch_ + static_cast<long>(t) * size_; }

  void run_layer(Team& team, const Layer& layer, size_t index) {
    const AttentionShape& shape = layer.attention;
    const int heads = shape.heads, kv_heads = shape.kv_heads, dim = shape.dim;
    const int width = (heads + 2 * kv_heads) * dim;
    each_row(team, tokens_, [&](int t) { norm_into(normed_, t, hidden(t), layer.input_norm, layer.eps); });
    products(team, k_, layer.qkv, normed_.activations(), tokens_, qkv_, width, [](int, int, int, float*) {});
    const bool same = layer.qkv.size() == 2;  // values are the keys

    const KVPlace place = step_.places[index];
    const std::vector<KVSpan>& spans = step_.spans[place.kind];
    const Angles& table = angles_.at(layer.rope.get());
    const int rotated = heads + (layer.owns() ? kv_heads : 0);
    each_row(team, tokens_ * rotated, [&](int i) {
      const int t = i / rotated, h = i % rotated;
      const float* cos = table.cos + static_cast<long>(t) * table.half;
      const float* sin = table.sin + static_cast<long>(t) * table.half;
      float* x = qkv_ + static_cast<long>(t) * width + h * dim;  // q heads, then k heads
      float* value = x + kv_heads * dim;  // of a k head
      if (h >= heads) {
        if (same) std::copy(x, x + dim, value);
        if (!layer.v_norm.empty()) k_.rms_norm(value, layer.v_norm.data(), layer.eps, dim, value);
      }
      const Vector& factor = h < heads ? layer.q_norm : layer.k_norm;
      if (!factor.empty()) k_.rms_norm(x, factor.data(), layer.eps, dim, x);
      k_.rotate(x, cos, sin, dim, x);
      if (h >= heads) {
        spans[token_row_[t]].write(k_, place.layer, h - heads, position(t), x, value);
      }
    });

    Prepared& mixed = by_width_.at(heads * dim);
    const auto parts = attention_parts(sequences_, shape, team.size());
    team.parts(static_cast<int>(parts.size()), [&](int i) {
      const int row = parts[i].sequence, token = first_token_[row];
      const int* ends = shape.window > 0 && !step_.ends[row].empty() ? step_.ends[row].data() : nullptr;
      attend(k_, parts[i], sequences_[row], shape, spans[row], place.layer, ends,
             qkv_ + static_cast<long>(token) * width, width, dim, mixed.row(token), heads * dim, dim);
    });
    each_row(team, tokens_, [&](int t) { mixed.set_row(k_, t, mixed.row(t)); });
    add_branch(team, layer, layer.o, mixed.activations(), layer.mixed_norm);

    each_row(team, tokens_, [&](int t) {
      finish_branch(layer, layer.mixed_norm, t);
      norm_into(normed_, t, hidden(t), layer.mlp_norm, layer.eps);
    });
    Prepared& inner = by_width_.at(layer.gate.n());
    gated_products(team, k_, layer.gate, layer.up, layer.activation, normed_.activations(), tokens_, inner.row(0));
    each_row(team, tokens_, [&](int t) { inner.set_row(k_, t, inner.row(t)); });
    add_branch(team, layer, layer.down, inner.activations(), layer.output_norm);
    if (!layer.output_norm.empty())
      each_row(team, tokens_, [&](int t) { finish_branch(layer, layer.output_norm, t); });
    if (!layer.side.empty()) run_side(team, layer, index);
    if (layer.output_scale != 1.0f)
      each_row(team, tokens_, [&](int t) {
        for (int d = 0; d < size_; ++d) hidden(t)[d] *= layer.output_scale;
      });
  }

  // The branch of the per-layer inputs.
  void run_side(Team& team, const Layer& layer, size_t index) {
    const int width = step_.side_width;
    each_row(team, tokens_, [&](int t) { normed_.set_row(k_, t, hidden(t)); });
    products(team, k_, {layer.side[0]}, normed_.activations(), tokens_, qkv_, width, [](int, int, int, float*) {});
    Prepared& gated = by_width_.at(width);
    each_row(team, tokens_, [&](int t) {
      const float* side = step_.sides + (static_cast<long>(t) * layers_.size() + index) * width;
      k_.gate(qkv_ + static_cast<long>(t) * width, side, width, Gate::gelu_tanh, gated.row(t));
      gated.set_row(k_, t, gated.row(t));
    });
    products(team, k_, {layer.side[1]}, gated.activations(), tokens_, branch_, size_, [](int, int, int, float*) {});
    each_row(team, tokens_, [&](int t) {
      k_.rms_norm(branch(t), layer.side_norm.data(), layer.eps, size_, branch(t));
      k_.add(hidden(t), branch(t), 1.0f, size_, hidden(t));
    });
  }

  void norm_into(Prepared& out, int t, const float* x, const Vector& factor, float eps) {
    k_.rms_norm(x, factor.data(), eps, size_, out.row(t));
    out.set_row(k_, t, out.row(t));
  }

  // The branch's last product: added to hidden at once, or, where a norm follows, left for finish_branch.
  void add_branch(Team& team, const Layer& layer, const Linear& linear, const Activations& in, const Vector& norm) {
    products(team, k_, {linear}, in, tokens_, branch_, size_, [&](int row, int column, int count, float* y) {
      float* x = hidden(row) + column;
      if (norm.empty()) k_.add(x, y, layer.residual_scale, count, x);
    });
  }

  void finish_branch(const Layer& layer, const Vector& norm, int t) {
    if (norm.empty()) return;
    k_.rms_norm(branch(t), norm.data(), layer.eps, size_, branch(t));
    k_.add(hidden(t), branch(t), layer.residual_scale, size_, hidden(t));
  }

  const Kernels& k_;
  const std::vector<std::shared_ptr<const Layer>>& layers_;
  const Step& step_;
  float* hidden_;
  const int size_;
  int tokens_ = 0;
  std::vector<Sequence> sequences_;  // one for each row
  std::vector<int> first_token_;     // of each row
  std::vector<int> token_row_;
  Prepared normed_;                  // inputs of q, k, v and of gate, up
  std::map<int, Prepared> by_width_; // inputs of o and of down
  float *qkv_ = nullptr, *branch_ = nullptr;
  std::map<const Rope*, Angles> angles_;
};

}  // namespace

void run_layers(const std::vector<std::shared_ptr<const Layer>>& layers, const Step& step, float* hidden, int size) {
  Run run(layers, step, hidden, size);
  run_together([&](Arena& arena) { run.take(arena); }, [&](Team& team) { run.run(team); }, as_work(run.multiplications()));
}

}  // namespace ingle
