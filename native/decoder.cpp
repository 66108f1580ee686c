// Whole decoder layers as one operation.

#include <cstring>

#include "call.h"
#include "primitives.h"

namespace ingle {

std::shared_ptr<const Rope> make_rope(const mx::array& inv_freq, float scale) {
  require(inv_freq.ndim() == 1 && inv_freq.dtype() == mx::float32, "rope: inv_freq must be float32 [dim / 2]");
  const mx::array values = evaluated(row_major(inv_freq));
  auto rope = std::make_shared<Rope>();
  rope->inv_freq.assign(values.data<float>(), values.data<float>() + values.size());
  rope->scale = scale;
  return rope;
}

std::shared_ptr<BoundLayer> make_layer(const LayerParts& p) {
  auto bound = std::make_shared<BoundLayer>();
  auto layer = std::make_shared<Layer>();
  auto vector = [](const MaybeArray& a, int size, const char* name) {
    if (!a) return Vector{};
    require(a->shape() == mx::Shape{size} && a->dtype() == mx::float32,
            std::string(name) + " is " + text(a->shape()) + ", expected float32 [" + std::to_string(size) + "]");
    const mx::array values = evaluated(row_major(*a));
    return Vector(values.data<float>(), values.data<float>() + size);
  };
  auto lines = [&](const Weights& weights, const Biases& biases) {
    require(weights.size() == biases.size(), "one bias or None for each weight");
    std::vector<Linear> out;
    for (size_t i = 0; i < weights.size(); ++i) {
      const float* bias = nullptr;
      if (biases[i]) {
        require(biases[i]->shape() == mx::Shape{weights[i]->weight().n} && biases[i]->dtype() == mx::float32,
                "a bias does not fit its weight");
        bound->held.push_back(evaluated(row_major(*biases[i])));
        bias = bound->held.back().data<float>();
      }
      out.push_back({weights[i], bias});
    }
    return out;
  };
  require(p.qkv.size() >= 1 && p.qkv.size() <= 3 && (p.others.size() == 4 || p.others.size() == 6),
          "a layer has q, k, v and o, gate, up, down, and two weights of a side branch or none");
  layer->qkv = lines(p.qkv, p.qkv_bias);
  const auto rest = lines(p.others, p.other_bias);
  layer->o = rest[0], layer->gate = rest[1], layer->up = rest[2], layer->down = rest[3];
  layer->side.assign(rest.begin() + 4, rest.end());
  const int size = layer->o.n(), q = p.heads * p.head_dim, kv = p.kv_heads * p.head_dim;
  require(p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.head_dim % 2 == 0, "heads do not divide into groups");
  bool fits = layer->o.k() == q && layer->gate.k() == size && layer->up.k() == size && layer->up.n() == layer->gate.n() &&
              layer->down.k() == layer->gate.n() && layer->down.n() == size &&
              2 * p.rope->inv_freq.size() == static_cast<size_t>(p.head_dim);
  for (size_t i = 0; i < layer->qkv.size(); ++i)
    fits = fits && layer->qkv[i].k() == size && layer->qkv[i].n() == (i ? kv : q);
  if (!layer->side.empty())
    fits = fits && layer->side[0].k() == size && layer->side[1].n() == size && layer->side[0].n() == layer->side[1].k() && p.side_norm;
  require(fits, "the layer's weights do not fit each other");
  layer->input_norm = vector(p.input_norm, size, "input_norm");
  layer->mlp_norm = vector(p.mlp_norm, size, "mlp_norm");
  layer->mixed_norm = vector(p.mixed_norm, size, "mixed_norm");
  layer->output_norm = vector(p.output_norm, size, "output_norm");
  layer->q_norm = vector(p.q_norm, p.head_dim, "q_norm");
  layer->k_norm = vector(p.k_norm, p.head_dim, "k_norm");
  layer->v_norm = vector(p.v_norm, p.head_dim, "v_norm");
  layer->side_norm = vector(p.side_norm, size, "side_norm");
  layer->eps = p.eps;
  layer->rope = p.rope;
  layer->attention = {p.heads, p.kv_heads, p.head_dim, p.scale, p.softcap, p.window};
  layer->activation = gate_named(p.activation);
  layer->residual_scale = p.residual_scale;
  layer->output_scale = p.output_scale;
  bound->layer = std::move(layer);
  return bound;
}

mx::array decoder_layers(const std::vector<std::shared_ptr<BoundLayer>>& layers, const mx::array& hidden,
                         const std::vector<Tables>& tables, const std::vector<std::pair<int, int>>& places,
                         const std::vector<std::pair<int, int>>& groups, const std::vector<int>& offsets,
                         const std::vector<std::vector<int>>& seen, const MaybeArray& sides,
                         const std::vector<mx::array>& after) {
  require(!layers.empty() && places.size() == layers.size(), "decoder_layers: no layers, or not a place for each");
  const int size = layers[0]->layer->o.n(), tokens = rows_of(hidden, size, "decoder_layers");
  auto step = std::make_shared<Step>();
  step->offsets = offsets;
  int total = 0;
  std::vector<int> ends;  // one past each row's last position
  for (const auto& [count, length] : groups) {
    require(count >= 0 && length >= 0, "decoder_layers: negative group");
    step->groups.push_back({count, length});
    total += count * length;
    for (int r = 0; r < count && ends.size() < offsets.size(); ++r) ends.push_back(offsets[ends.size()] + length);
  }
  require(total == tokens && offsets.size() == ends.size(), "decoder_layers: groups do not add up to " + std::to_string(tokens) + " tokens");
  require(seen.size() == ends.size(), "decoder_layers: ends for each row, or none of them");
  step->ends = seen;
  for (size_t row = 0; row < seen.size(); ++row) {
    const int length = ends[row] - offsets[row];
    require(seen[row].empty() || static_cast<int>(seen[row].size()) == length, "decoder_layers: an end for each token of a row");
    for (int i = 0; i < static_cast<int>(seen[row].size()); ++i)
      require(seen[row][i] > offsets[row] + i && seen[row][i] <= ends[row], "decoder_layers: a span does not end in its window");
  }
  if (sides) {
    require(sides->ndim() == 3 && sides->dtype() == mx::float32 && sides->shape(0) == tokens &&
                sides->shape(1) == static_cast<int>(layers.size()),
            "decoder_layers: per-layer inputs " + text(sides->shape()) + " do not fit " + std::to_string(tokens) + " tokens of " +
                std::to_string(layers.size()) + " layers");
    step->side_width = sides->shape(2);
  }
  for (const Tables& kind : tables) {
    require(kind.size() == ends.size(), "decoder_layers: a table for each row");
    step->spans.emplace_back();
    for (size_t row = 0; row < kind.size(); ++row) {
      step->spans.back().emplace_back(*kind[row]);
      require_held(step->spans.back().back(), offsets[row], ends[row], "decoder_layers");
    }
  }
  std::vector<std::shared_ptr<const Layer>> run;
  for (size_t i = 0; i < layers.size(); ++i) {
    const AttentionShape& a = layers[i]->layer->attention;
    const auto [kind, layer] = places[i];
    require(layers[i]->layer->o.n() == size, "decoder_layers: layers of different sizes");
    const auto& side = layers[i]->layer->side;
    require(side.empty() ? true : sides && side[0].n() == step->side_width, "decoder_layers: per-layer inputs of another width");
    require(kind >= 0 && kind < static_cast<int>(tables.size()), "decoder_layers: no tables of kind " + std::to_string(kind));
    for (const KVSpan& span : step->spans[kind])
      require_shape(span.shape(), layer, a.kv_heads, a.dim, "decoder_layers");
    step->places.push_back({kind, layer});
    run.push_back(layers[i]->layer);
  }
  // `layers` is held for the arrays that its pointers look into.
  std::vector<mx::array> inputs{row_major(hidden)};
  if (sides) inputs.push_back(row_major(*sides));
  const bool with_sides = sides.has_value();
  inputs.insert(inputs.end(), after.begin(), after.end());
  return call("IngleDecoderLayers", hidden.shape(), mx::float32, inputs, [=](const Pointers& at) {
    std::memcpy(at.back(), at[0], static_cast<size_t>(tokens) * size * sizeof(float));
    if (with_sides) step->sides = as<float>(at[1]);
    if (tokens > 0 && !layers.empty()) run_layers(run, *step, as<float>(at.back()), size);
  });
}

}  // namespace ingle
