// The Python module: names, arguments and defaults of the native operations.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "pool.h"
#include "primitives.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_cpu, m) {
  using namespace ingle;
  m.doc() = "Ingle's native CPU operations for MLX";
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("isas", &isas);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("threads", &pool_threads);
  m.def("set_threads", &set_pool_threads, "count"_a);

  nb::class_<Packed>(m, "Packed")
      .def_prop_ro("n", [](const Packed& p) { return p.weight().n; })
      .def_prop_ro("k", [](const Packed& p) { return p.weight().k; })
      .def_prop_ro("nbytes", &Packed::nbytes);
  m.def("pack_codes", &pack_codes, "codes"_a, "scales"_a, "biases"_a, "bits"_a, "group_size"_a);
  m.def("pack_floats", &pack_floats, "values"_a);

  m.def("linear", &linear, "x"_a, "weights"_a, "biases"_a, "residual"_a = nb::none(), "scale"_a = 1.0f, "softcap"_a = 0.0f);
  m.def("gated_linear", &gated_linear, "x"_a, "gate"_a, "up"_a, "gate_bias"_a.none(), "up_bias"_a.none(), "activation"_a);
  m.def("expert_linear", &expert_linear, "x"_a, "experts"_a, "ends"_a);
  m.def("embed", &embed, "ids"_a, "weight"_a, "scale"_a);
  m.def("rms_norm", &rms_norm, "x"_a, "weight"_a, "eps"_a);
  m.def("rope", &rope, "x"_a, "offsets"_a, "inv_freq"_a, "scale"_a);
  m.def("gate", &gate, "gate"_a, "up"_a, "activation"_a);
  nb::class_<KVBlock>(m, "KVBlock")
      .def_prop_ro("nbytes", &KVBlock::nbytes)
      .def("__bytes__", [](const KVBlock& b) { return nb::bytes(b.data(), b.nbytes()); });
  nb::class_<KVTable>(m, "KVTable")
      .def("__init__", [](KVTable* self, int layers, int heads, int dim, bool halves) {
        new (self) KVTable({layers, heads, dim, halves});
      }, "layers"_a, "heads"_a, "dim"_a, "halves"_a)
      .def_prop_ro("first", &KVTable::first)
      .def_prop_ro("end", &KVTable::end)
      .def_prop_ro("block_bytes", [](const KVTable& t) { return t.shape().block_bytes(); })
      .def("reserve", &KVTable::reserve, "needed"_a, "start"_a, "end"_a)
      .def("cut", &KVTable::cut, "end"_a)
      .def("share", &KVTable::share, "number"_a)
      .def("replace", &KVTable::replace, "number"_a, "block"_a)
      .def("copy", &KVTable::copy)
      .def("adopt", [](const KVTable& t, int first, KVBlocks blocks) {
        return std::make_shared<KVTable>(t.shape(), first, std::move(blocks));
      }, "first"_a, "blocks"_a)
      .def("block_from", [](const KVTable& t, nb::bytes data) {
        auto block = std::make_shared<KVBlock>(t.shape());
        if (data.size() != block->nbytes())
          throw std::invalid_argument("a block has " + std::to_string(block->nbytes()) + " bytes, got " + std::to_string(data.size()));
        std::memcpy(block->data(), data.c_str(), data.size());
        return block;
      }, "data"_a);
  m.def("weight_bytes", &Packed::live_bytes);
  m.def("kv_bytes", &KVBlock::live_bytes);
  m.def("kv_peak_bytes", &KVBlock::peak_bytes);
  m.def("reset_kv_peak", &KVBlock::reset_peak);
  m.def("arena_bytes", &arena_bytes);
  m.def("append", &append, "keys"_a, "values"_a, "tables"_a, "layer"_a, "starts"_a, "after"_a);
  m.def("attention", &attention, "queries"_a, "tables"_a, "layer"_a, "offsets"_a, "after"_a, "ends"_a.none(),
        "scale"_a, "window"_a, "softcap"_a);
  m.def("contents", &contents, "table"_a, "layer"_a, "first"_a, "end"_a);

  nb::class_<Draw>(m, "Draw").def(
      "__init__",
      [](Draw* self, float temperature, int top_k, float top_p, float min_p, unsigned high, unsigned low) {
        new (self) Draw{temperature, top_k, top_p, min_p, {high, low}};
      },
      "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "key_high"_a, "key_low"_a);
  m.def("sample", &sample, "logits"_a, "draws"_a);

  nb::class_<Rope>(m, "Rope");
  m.def("make_rope", &make_rope, "inv_freq"_a, "scale"_a);
  nb::class_<BoundLayer>(m, "Layer");
  m.def(
      "make_layer",
      [](mx::array input_norm, mx::array mlp_norm, MaybeArray q_norm, MaybeArray k_norm, MaybeArray v_norm,
         MaybeArray mixed_norm, MaybeArray output_norm, MaybeArray side_norm, float eps, Weights qkv, Biases qkv_biases,
         Weights others, Biases other_biases, std::shared_ptr<Rope> rope, int heads, int kv_heads, int head_dim,
         float scale, int window, float softcap, std::string activation, float residual_scale, float output_scale) {
        return make_layer({input_norm, mlp_norm, q_norm, k_norm, v_norm, mixed_norm, output_norm, side_norm, eps, qkv,
                           others, qkv_biases, other_biases, rope, heads, kv_heads, head_dim, window, scale, softcap,
                           residual_scale, output_scale, activation});
      },
      nb::kw_only(), "input_norm"_a, "mlp_norm"_a, "q_norm"_a.none(), "k_norm"_a.none(), "v_norm"_a.none(),
      "mixed_norm"_a.none(), "output_norm"_a.none(), "side_norm"_a.none(), "eps"_a, "qkv"_a, "qkv_biases"_a, "others"_a, "other_biases"_a, "rope"_a, "heads"_a,
      "kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a, "softcap"_a, "activation"_a, "residual_scale"_a,
      "output_scale"_a);
  m.def("decoder_layers", &decoder_layers, "layers"_a, "hidden"_a, "tables"_a, "places"_a, "groups"_a,
        "offsets"_a, "ends"_a, "sides"_a.none(), "after"_a);
  nb::class_<Drafter>(m, "Drafter");
  m.def("make_drafter", &make_drafter, nb::kw_only(), "table"_a, "scale"_a, "text_ids"_a.none(), "pre"_a, "layers"_a, "norm"_a,
        "eps"_a, "head"_a, "softcap"_a, "post"_a);
  m.def("draft", &draft, "drafter"_a, "tokens"_a, "hidden"_a, "tables"_a, "places"_a, "offsets"_a, "depths"_a, "draws"_a,
        "after"_a);
}
