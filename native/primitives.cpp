// The single operations.

#include "primitives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "call.h"

namespace ingle {
namespace {

// Biases join a call's inputs; returns each one's place among them, or -1.
std::vector<int> add_biases(const Biases& biases, const Weights& weights, std::vector<mx::array>& inputs) {
  require(biases.size() == weights.size(), "one bias or None for each weight");
  std::vector<int> places;
  for (size_t i = 0; i < biases.size(); ++i) {
    places.push_back(biases[i] ? static_cast<int>(inputs.size()) : -1);
    if (!biases[i]) continue;
    require(biases[i]->shape() == mx::Shape{weights[i]->weight().n} && biases[i]->dtype() == mx::float32,
            "bias " + text(biases[i]->shape()) + " does not fit " + std::to_string(weights[i]->weight().n) + " outputs");
    inputs.push_back(row_major(*biases[i]));
  }
  return places;
}

std::vector<Linear> linears(const Weights& weights, const std::vector<int>& places, const Pointers& at) {
  std::vector<Linear> out;
  for (size_t i = 0; i < weights.size(); ++i)
    out.push_back({weights[i], places[i] < 0 ? nullptr : as<float>(at[places[i]])});
  return out;
}

float from_bf16_bits(unsigned short half) { return std::bit_cast<float>(static_cast<unsigned>(half) << 16); }

}  // namespace

std::shared_ptr<Packed> pack_codes(const mx::array& codes, const mx::array& scales, const mx::array& biases, int bits,
                                   int group) {
  require(bits >= 2 && bits <= 8 && bits != 7, "bits is " + std::to_string(bits) + ", expected 2, 3, 4, 5, 6 or 8");
  require(group == 16 || group == 32 || group == 64 || group == 128,
          "groups of " + std::to_string(group) + " are not supported");
  require(codes.ndim() == 2 && codes.dtype() == mx::uint32, "codes must be uint32 [N, K * bits / 32]");
  const long k = static_cast<long>(codes.shape(1)) * 32 / bits;
  const int n = codes.shape(0);
  const mx::Shape wanted{n, static_cast<int>(k / group)};
  require(k > 0 && k % group == 0 && k * bits == static_cast<long>(codes.shape(1)) * 32,
          "codes " + text(codes.shape()) + " are not whole groups of " + std::to_string(group));
  require(scales.shape() == wanted && biases.shape() == wanted,
          "scales " + text(scales.shape()) + " and biases " + text(biases.shape()) + " do not fit codes " +
              text(codes.shape()) + " in groups of " + std::to_string(group));
  auto floats = [](const mx::array& a) { return evaluated(row_major(mx::astype(a, mx::float32, mx::Device(mx::Device::cpu)))); };
  const mx::array c = evaluated(row_major(codes)), s = floats(scales), b = floats(biases);
  return Packed::codes(c.data<uint32_t>(), s.data<float>(), b.data<float>(), n, static_cast<int>(k), bits, group);
}

std::shared_ptr<Packed> pack_floats(const mx::array& values) {
  const auto type = values.dtype();
  require(values.ndim() == 2 && (type == mx::float32 || type == mx::float16 || type == mx::bfloat16),
          "values must be float32, float16 or bfloat16 [N, K], got " + text(values.shape()));
  const mx::array v = evaluated(row_major(values));
  const Form form = type == mx::float32 ? Form::f32 : type == mx::float16 ? Form::f16 : Form::bf16;
  return Packed::floats(v.data<char>(), form, v.shape(0), v.shape(1));
}

mx::array linear(const mx::array& x, const Weights& weights, const Biases& biases, const MaybeArray& residual,
                 float scale, float softcap) {
  require(!weights.empty(), "linear: no weights");
  const int k = weights[0]->weight().k, rows = rows_of(x, k, "linear");
  int n = 0;
  for (const auto& weight : weights) {
    require(weight->weight().k == k, "linear: weights side by side must have the same inputs");
    n += weight->weight().n;
  }
  mx::Shape shape = x.shape();
  shape.back() = n;
  std::vector<mx::array> inputs{row_major(x)};
  const auto places = add_biases(biases, weights, inputs);
  int residual_at = -1;
  if (residual) {
    require(residual->shape() == shape && residual->dtype() == mx::float32,
            "linear: residual " + text(residual->shape()) + " is not float32 " + text(shape));
    residual_at = static_cast<int>(inputs.size());
    inputs.push_back(row_major(*residual));
  }
  return call("IngleLinear", shape, mx::float32, inputs, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    const float* base = residual_at < 0 ? nullptr : as<float>(at[residual_at]);
    auto* out = as<float>(at.back());
    const auto parts = linears(weights, places, at);
    if (rows > 0 && n > 0)
      with_prepared(as<float>(at[0]), rows, k, static_cast<long>(k) * n, [&](Team& team, const Activations& in) {
        products(team, kernels, parts, in, rows, out, n, [&](int r, int column, int count, float* y) {
          if (base) kernels.add(base + static_cast<long>(r) * n + column, y, scale, count, y);
          if (softcap > 0.0f) kernels.softcap(y, count, softcap);
        });
      });
  });
}

mx::array gated_linear(const mx::array& x, const std::shared_ptr<Packed>& gate, const std::shared_ptr<Packed>& up,
                       const MaybeArray& gate_bias, const MaybeArray& up_bias, const std::string& activation) {
  const int k = gate->weight().k, n = gate->weight().n, rows = rows_of(x, k, "gated_linear");
  require(up->weight().k == k && up->weight().n == n, "gated_linear: gate and up must have the same shape");
  const Gate kind = gate_named(activation);
  mx::Shape shape = x.shape();
  shape.back() = n;
  std::vector<mx::array> inputs{row_major(x)};
  const auto places = add_biases({gate_bias, up_bias}, {gate, up}, inputs);
  return call("IngleGatedLinear", shape, mx::float32, inputs, [=](const Pointers& at) {
    const auto parts = linears({gate, up}, places, at);
    if (rows > 0 && n > 0)
      with_prepared(as<float>(at[0]), rows, k, 2L * k * n, [&](Team& team, const Activations& in) {
        gated_products(team, ingle::kernels(), parts[0], parts[1], kind, in, rows, as<float>(at.back()));
      });
  });
}

mx::array expert_linear(const mx::array& x, const Weights& experts, const mx::array& ends) {
  require(!experts.empty(), "expert_linear: no experts");
  const int k = experts[0]->weight().k, n = experts[0]->weight().n, rows = rows_of(x, k, "expert_linear");
  for (const auto& e : experts)
    require(e->weight().k == k && e->weight().n == n, "expert_linear: experts must have the same shape");
  require(ends.shape() == mx::Shape{static_cast<int>(experts.size())} && ends.dtype() == mx::int32,
          "expert_linear: ends must be int32 [" + std::to_string(experts.size()) + "], got " + text(ends.shape()));
  mx::Shape shape = x.shape();
  shape.back() = n;
  return call("IngleExpertLinear", shape, mx::float32, {row_major(x), row_major(ends)}, [=](const Pointers& at) {
    auto* out = as<float>(at.back());
    const auto* last = as<int>(at[1]);
    std::memset(out, 0, static_cast<size_t>(rows) * n * sizeof(float));  // rows of no expert
    if (rows == 0 || n == 0) return;
    std::vector<std::pair<int, Split::Part>> parts;  // expert, place
    for (size_t e = 0; e < experts.size(); ++e) {
      const int first = std::clamp(e ? last[e - 1] : 0, 0, rows), count = std::clamp(last[e], first, rows) - first;
      const Split split(count, experts[e]->weight().blocks(), 1);
      for (int i = 0; i < split.count(); ++i) {
        Split::Part part = split[i];
        part.first_row += first, part.last_row += first;
        parts.emplace_back(static_cast<int>(e), part);
      }
    }
    with_prepared(as<float>(at[0]), rows, k, static_cast<long>(k) * n, [&](Team& team, const Activations& in) {
      team.parts(static_cast<int>(parts.size()), [&](int i) {
        const auto& [expert, p] = parts[i];
        ingle::kernels().product(experts[expert]->weight(), in,
                                 {p.first_row, p.last_row - p.first_row, p.first_block, p.last_block - p.first_block,
                                  out + static_cast<long>(p.first_row) * n + p.first_block * kBlock, n});
      });
    });
  });
}

mx::array embed(const mx::array& ids, const std::shared_ptr<Packed>& packed, float scale) {
  require(ids.ndim() == 1 && ids.dtype() == mx::int32, "embed: ids must be int32 [tokens], got " + text(ids.shape()));
  const int k = packed->weight().k, n = packed->weight().n, rows = ids.shape(0);
  return call("IngleEmbed", {rows, k}, mx::float32, {row_major(ids)}, [=](const Pointers& at) {
    const auto* id = as<int>(at[0]);
    auto* out = as<float>(at[1]);
    run_together([&](Team& team) {
      each_row(team, rows, [&](int r) {
        float* row = out + static_cast<long>(r) * k;
        if (id[r] >= 0 && id[r] < n)
          packed->read_row(id[r], scale, row);
        else
          std::fill(row, row + k, 0.0f);  // requests are checked before; never read past the table
      });
    }, static_cast<long>(rows) * k);
  });
}

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps) {
  require(weight.ndim() == 1 && weight.dtype() == mx::float32, "rms_norm: weight must be float32 [N]");
  const int n = weight.shape(0), rows = rows_of(x, n, "rms_norm");
  return call("IngleRMSNorm", x.shape(), mx::float32, {row_major(x), row_major(weight)}, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    run_together([&](Team& team) {
      each_row(team, rows, [&](int r) {
        const long i = static_cast<long>(r) * n;
        kernels.rms_norm(as<float>(at[0]) + i, as<float>(at[1]), eps, n, as<float>(at[2]) + i);
      });
    }, static_cast<long>(rows) * n);
  });
}

mx::array rope(const mx::array& x, const std::vector<int>& offsets, const mx::array& inv_freq, float scale) {
  require(x.ndim() == 4 && x.dtype() == mx::float32 && static_cast<size_t>(x.shape(0)) == offsets.size(),
          "rope: x must be float32 [rows, heads, length, dim] with an offset for each row, got " + text(x.shape()));
  const int heads = x.shape(1), length = x.shape(2), dim = x.shape(3), rows = x.shape(0);
  require(dim % 2 == 0 && inv_freq.shape() == mx::Shape{dim / 2} && inv_freq.dtype() == mx::float32,
          "rope: inv_freq " + text(inv_freq.shape()) + " does not fit x " + text(x.shape()));
  return call("IngleRope", x.shape(), mx::float32, {row_major(x), row_major(inv_freq)}, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    run_together([&](Team& team) {
      each_row(team, rows * length, [&](int i) {
        const int r = i / length, t = i % length;
        float* table = thread_scratch(dim);
        angles(offsets[r] + t, as<float>(at[1]), dim / 2, scale, table, table + dim / 2);
        for (int h = 0; h < heads; ++h) {
          const long place = ((static_cast<long>(r) * heads + h) * length + t) * dim;
          kernels.rotate(as<float>(at[0]) + place, table, table + dim / 2, dim, as<float>(at[2]) + place);
        }
      });
    }, static_cast<long>(rows) * length * heads * dim);
  });
}

mx::array gate(const mx::array& gate, const mx::array& up, const std::string& activation) {
  require(gate.shape() == up.shape() && gate.dtype() == mx::float32 && up.dtype() == mx::float32 && gate.ndim() >= 1,
          "gate: " + text(gate.shape()) + " and " + text(up.shape()) + " must be float32 of one shape");
  const Gate kind = gate_named(activation);
  const int n = gate.shape(-1), rows = n == 0 ? 0 : static_cast<int>(gate.size() / n);
  return call("IngleGate", gate.shape(), mx::float32, {row_major(gate), row_major(up)}, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    run_together([&](Team& team) {
      each_row(team, rows, [&](int r) {
        const long i = static_cast<long>(r) * n;
        kernels.gate(as<float>(at[0]) + i, as<float>(at[1]) + i, n, kind, as<float>(at[2]) + i);
      });
    }, static_cast<long>(rows) * n * 4);
  });
}

namespace {

// The tables of rows that write or read [starts[r], starts[r] + length) of a layer.
std::vector<KVSpan> spans_of(const Tables& tables, int layer, int heads, int dim, const std::vector<int>& starts,
                             int length, const std::string& name) {
  require(tables.size() == starts.size(), name + ": a table and a position for each row");
  std::vector<KVSpan> spans;
  for (size_t r = 0; r < tables.size(); ++r) {
    spans.emplace_back(*tables[r]);
    require_shape(spans[r].shape(), layer, heads, dim, name);
    require_held(spans[r], starts[r], starts[r] + length, name);
  }
  return spans;
}

}  // namespace

mx::array append(const mx::array& keys, const mx::array& values, const Tables& tables, int layer,
                 const std::vector<int>& starts, const std::vector<mx::array>& after) {
  require(keys.ndim() == 4 && keys.dtype() == mx::float32 && values.dtype() == mx::float32 && keys.shape() == values.shape() &&
              static_cast<size_t>(keys.shape(0)) == tables.size(),
          "append: keys " + text(keys.shape()) + " and values " + text(values.shape()) +
              " must both be float32 [rows, heads, length, dim]");
  const int rows = keys.shape(0), heads = keys.shape(1), length = keys.shape(2), dim = keys.shape(3);
  auto spans = spans_of(tables, layer, heads, dim, starts, length, "append");
  std::vector<mx::array> inputs{row_major(keys), row_major(values)};
  inputs.insert(inputs.end(), after.begin(), after.end());
  return call("IngleAppend", {1}, mx::uint8, inputs, [=](const Pointers& at) {
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h)
        for (int t = 0; t < length; ++t) {
          const long from = ((static_cast<long>(r) * heads + h) * length + t) * dim;
          spans[r].write(ingle::kernels(), layer, h, starts[r] + t, as<float>(at[0]) + from, as<float>(at[1]) + from);
        }
    *at.back() = 1;
  });
}

mx::array attention(const mx::array& queries, const Tables& tables, int layer, const std::vector<int>& offsets,
                    const std::vector<mx::array>& after, const MaybeArray& ends, float scale, int window, float softcap) {
  require(queries.ndim() == 4 && queries.dtype() == mx::float32 && static_cast<size_t>(queries.shape(0)) == tables.size(),
          "attention: queries must be float32 [rows, heads, length, dim], got " + text(queries.shape()));
  const int rows = queries.shape(0), heads = queries.shape(1), length = queries.shape(2), dim = queries.shape(3);
  const int kv_heads = tables.empty() ? heads : tables[0]->shape().heads;
  require(kv_heads > 0 && heads % kv_heads == 0, "attention: " + std::to_string(heads) + " query heads do not divide among " +
                                                     std::to_string(kv_heads));
  auto spans = spans_of(tables, layer, kv_heads, dim, offsets, length, "attention");
  std::vector<mx::array> inputs{row_major(queries)};
  if (ends) {
    require(ends->shape() == mx::Shape{rows, length} && ends->dtype() == mx::int32,
            "attention: ends must be int32 " + text({rows, length}) + ", got " + text(ends->shape()));
    inputs.push_back(row_major(*ends));
  }
  inputs.insert(inputs.end(), after.begin(), after.end());
  const AttentionShape shape{heads, kv_heads, dim, scale, softcap, window};
  const bool with_ends = ends.has_value();
  return call("IngleAttention", queries.shape(), mx::float32, inputs, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    std::vector<Sequence> sequences;
    for (int r = 0; r < rows; ++r) sequences.push_back({length, offsets[r]});
    std::vector<int> seen;  // ends that lie in the table and see the query itself
    if (with_ends)
      for (int i = 0; i < rows * length; ++i) {
        const int r = i / length, own = offsets[r] + i % length + 1;
        seen.push_back(std::clamp(as<int>(at[1])[i], own, std::max(own, spans[r].end())));
      }
    const long row = static_cast<long>(heads) * length * dim, head = static_cast<long>(length) * dim;
    long work = 0;
    for (int r = 0; r < rows; ++r) work += row * (spans[r].end() - spans[r].base());
    run_together([&](Team& team) {
      const auto parts = attention_parts(sequences, shape, team.size());
      team.parts(static_cast<int>(parts.size()), [&](int i) {
        const int r = parts[i].sequence;
        attend(kernels, parts[i], sequences[r], shape, spans[r], layer,
               with_ends ? seen.data() + static_cast<long>(r) * length : nullptr, as<float>(at[0]) + r * row, dim, head,
               as<float>(at.back()) + r * row, dim, head);
      });
    }, work);
  });
}

std::pair<mx::array, mx::array> contents(const std::shared_ptr<KVTable>& table, int layer, int first, int end) {
  const KVSpan span(*table);
  const KVShape& shape = span.shape();
  require(first <= end, "contents: positions end before they begin");
  require_shape(shape, layer, shape.heads, shape.dim, "contents");
  if (first < end) require_held(span, first, end, "contents");
  const int dim = shape.dim;
  std::vector<float> keys, values;
  auto number = [&](const char* from, long i) {
    return shape.halves ? from_bf16_bits(reinterpret_cast<const unsigned short*>(from)[i]) : reinterpret_cast<const float*>(from)[i];
  };
  for (int h = 0; h < shape.heads; ++h)
    for (int p = first; p < end; ++p) {
      const char* block = span.blocks()[(p - span.base()) / kKeyBlock];
      const int column = p % kKeyBlock;
      for (int d = 0; d < dim; ++d) {
        keys.push_back(number(block + shape.keys_at(layer, h), static_cast<long>(column / kBlock) * kBlock * dim + d * kBlock + column % kBlock));
        values.push_back(number(block + shape.values_at(layer, h), static_cast<long>(column) * dim + d));
      }
    }
  const mx::Shape out{shape.heads, end - first, dim};
  return {mx::array(keys.begin(), out), mx::array(values.begin(), out)};
}

mx::array sample(const mx::array& logits, const std::vector<Draw>& draws) {
  require(logits.ndim() == 2 && logits.dtype() == mx::float32 && logits.shape(1) > 0 &&
              static_cast<size_t>(logits.shape(0)) == draws.size(),
          "sample: logits must be float32 [" + std::to_string(draws.size()) + ", vocab], got " + text(logits.shape()));
  const int rows = logits.shape(0), vocab = logits.shape(1);
  return call("IngleSample", {rows}, mx::int32, {row_major(logits)}, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    run_together([&](Team& team) {
      team.parts(rows, [&](int r) {
        as<int>(at[1])[r] = choose(kernels, as<float>(at[0]) + static_cast<long>(r) * vocab, vocab, draws[r]);
      });
    }, static_cast<long>(rows) * vocab);
  });
}

}  // namespace ingle
