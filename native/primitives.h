// Ingle's CPU operations as lazy MLX arrays.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choice.h"
#include "kv.h"
#include "layer.h"
#include "mlx/mlx.h"
#include "packed.h"

namespace ingle {

namespace mx = mlx::core;
using MaybeArray = std::optional<mx::array>;
using Biases = std::vector<MaybeArray>;
using Weights = std::vector<std::shared_ptr<Packed>>;
using Tables = std::vector<std::shared_ptr<KVTable>>;

// All functions throw std::invalid_argument where shapes or types do not fit, and name them.

std::shared_ptr<Packed> pack_codes(const mx::array& codes, const mx::array& scales, const mx::array& biases, int bits,
                                   int group);
std::shared_ptr<Packed> pack_floats(const mx::array& values);

mx::array linear(const mx::array& x, const Weights& weights, const Biases& biases, const MaybeArray& residual,
                 float scale, float softcap);
mx::array gated_linear(const mx::array& x, const std::shared_ptr<Packed>& gate, const std::shared_ptr<Packed>& up,
                       const MaybeArray& gate_bias, const MaybeArray& up_bias, const std::string& activation);
mx::array expert_linear(const mx::array& x, const Weights& experts, const mx::array& ends);
mx::array embed(const mx::array& ids, const std::shared_ptr<Packed>& packed, float scale);
mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps);
mx::array rope(const mx::array& x, const std::vector<int>& offsets, const mx::array& inv_freq, float scale);
mx::array gate(const mx::array& gate, const mx::array& up, const std::string& activation);
// Writes keys and values [rows, heads, length, dim] of `layer` at positions starts[r] on, when `after` is
// done. The result says nothing but that this is: whatever reads or writes there later takes it.
mx::array append(const mx::array& keys, const mx::array& values, const Tables& tables, int layer,
                 const std::vector<int>& starts, const std::vector<mx::array>& after);
mx::array attention(const mx::array& queries, const Tables& tables, int layer, const std::vector<int>& offsets,
                    const std::vector<mx::array>& after, const MaybeArray& ends, float scale, int window, float softcap);
// Keys and values of `layer` at positions [first, end): each float32 [heads, end - first, dim]. At once.
std::pair<mx::array, mx::array> contents(const std::shared_ptr<KVTable>& table, int layer, int first, int end);
mx::array sample(const mx::array& logits, const std::vector<Draw>& draws);

struct LayerParts {
  mx::array input_norm, mlp_norm;
  MaybeArray q_norm, k_norm, v_norm, mixed_norm, output_norm, side_norm;
  float eps;
  Weights qkv, others;  // others: o, gate, up, down, and the two of the side branch, if any
  Biases qkv_bias, other_bias;
  std::shared_ptr<const Rope> rope;
  int heads, kv_heads, head_dim, window;
  float scale, softcap, residual_scale, output_scale;
  std::string activation;
};

// A layer with the arrays that its pointers look into.
struct BoundLayer : std::enable_shared_from_this<BoundLayer> {
  std::shared_ptr<const Layer> layer;
  std::vector<mx::array> held;
};

std::shared_ptr<BoundLayer> make_layer(const LayerParts& parts);
std::shared_ptr<const Rope> make_rope(const mx::array& inv_freq, float scale);

// hidden [tokens, size] through the layers, which write to the tables. `tables`: for each kind of layer,
// for each row; `places`: (kind, layer within it) of each layer; `groups`: (rows, length); `offsets`: for
// each row; `ends`: for each row, empty or one for each of its tokens (see Step); `sides`: [tokens, layers,
// width]; `after`: what must be done before.
mx::array decoder_layers(const std::vector<std::shared_ptr<BoundLayer>>& layers, const mx::array& hidden,
                         const std::vector<Tables>& tables, const std::vector<std::pair<int, int>>& places,
                         const std::vector<std::pair<int, int>>& groups, const std::vector<int>& offsets,
                         const std::vector<std::vector<int>>& ends, const MaybeArray& sides,
                         const std::vector<mx::array>& after);

// An assistant: pre(embedding of the token, hidden) -> layers -> norm; head gives logits, post the next hidden.
struct Drafter {
  std::shared_ptr<Packed> table, pre, head, post;  // the table is the target's
  float scale, eps, softcap;
  std::vector<std::shared_ptr<BoundLayer>> layers;
  Vector norm;
  std::vector<int> text_ids;  // whose embedding each token has; empty: its own
};

std::shared_ptr<Drafter> make_drafter(const std::shared_ptr<Packed>& table, float scale, const MaybeArray& text_ids,
                                      const std::shared_ptr<Packed>& pre, const std::vector<std::shared_ptr<BoundLayer>>& layers,
                                      const mx::array& norm, float eps, const std::shared_ptr<Packed>& head, float softcap,
                                      const std::shared_ptr<Packed>& post);

// int32 [drafts]: first those of the first step, of each row; rows are in order of falling depth. `tokens` int32
// [rows] and `hidden` [rows, backbone] to begin with; `offsets`: where each row's queries stand; `draws`: of
// each draft; the rest as for `decoder_layers`.
mx::array draft(const std::shared_ptr<Drafter>& drafter, const mx::array& tokens, const mx::array& hidden,
                const std::vector<Tables>& tables, const std::vector<std::pair<int, int>>& places, const std::vector<int>& offsets,
                const std::vector<int>& depths, const std::vector<Draw>& draws, const std::vector<mx::array>& after);

}  // namespace ingle
