// A decoder layer as one program of phases, and a run of layers over the sequences of a step.
#pragma once

#include <memory>
#include <vector>

#include "phases.h"

namespace ingle {

// Rotation of one kind of layer; layers share it by pointer.
struct Rope : std::enable_shared_from_this<Rope> {
  std::vector<float> inv_freq;  // [dim / 2]
  float scale;                  // of cosines and sines
};

using Vector = std::vector<float>;  // a norm's factor; empty: no such norm

// x + scale * mixed_norm(o(attention(input_norm(x)))), then x + scale * output_norm(down(gate(mlp_norm(x)))),
// then x + side_norm(side[1](gelu(side[0](x)) * its per-layer inputs)); all of it times output_scale.
struct Layer {
  Vector input_norm, q_norm, k_norm, v_norm, mixed_norm, mlp_norm, output_norm, side_norm;
  float eps;
  // q, k, v; without v values are the keys before norm and rotation; with q alone KV is read, not written.
  std::vector<Linear> qkv;
  Linear o, gate, up, down;
  std::vector<Linear> side;  // none, or two
  std::shared_ptr<const Rope> rope;
  AttentionShape attention;
  Gate activation;
  float residual_scale, output_scale;

  bool owns() const { return qkv.size() > 1; }
};

struct StepGroup {
  int rows, length;
};

// Where a layer's keys and values lie: in which kind of span, as which of its layers.
struct KVPlace {
  int kind, layer;
};

// All groups' tokens lie behind each other, row by row.
struct Step {
  std::vector<StepGroup> groups;
  std::vector<int> offsets;                // position of each row's first token, group after group
  std::vector<std::vector<KVSpan>> spans;  // for each kind, of each row
  std::vector<KVPlace> places;             // of each layer
  // Of each row, for each of its tokens: layers with a window see positions below. Empty: up to its own.
  std::vector<std::vector<int>> ends;
  const float* sides = nullptr;  // [tokens][layers][side_width]: per-layer inputs
  int side_width = 0;
};

// Runs `layers` over hidden [tokens, size], in place, writing to the spans.
void run_layers(const std::vector<std::shared_ptr<const Layer>>& layers, const Step& step, float* hidden, int size);

}  // namespace ingle
