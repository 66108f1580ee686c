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

// x + scale * mixed_norm(o(attention(input_norm(x)))), then x + scale * output_norm(down(gate(mlp_norm(x)))).
struct Layer {
  Vector input_norm, q_norm, k_norm, mixed_norm, mlp_norm, output_norm;
  float eps;
  std::vector<Linear> qkv;  // q, k, v
  Linear o, gate, up, down;
  std::shared_ptr<const Rope> rope;
  AttentionShape attention;
  Gate activation;
  float residual_scale;
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
};

// Runs `layers` over hidden [tokens, size], in place, writing to the spans.
void run_layers(const std::vector<std::shared_ptr<const Layer>>& layers, const Step& step, float* hidden, int size);

}  // namespace ingle
