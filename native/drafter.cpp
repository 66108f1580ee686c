// A whole round of an assistant as one operation: it drafts token by token, attending to its target's KV.

#include <cstring>

#include "call.h"
#include "primitives.h"

namespace ingle {
namespace {

// y[r] = x[r] W^T
void product(const std::shared_ptr<Packed>& packed, const float* x, int rows, float* y) {
  const int k = packed->weight().k, n = packed->weight().n;
  with_prepared(x, rows, k, static_cast<long>(k) * n, [&](Team& team, const Activations& in) {
    products(team, ingle::kernels(), {{packed, nullptr}}, in, rows, y, n, [](int, int, int, float*) {});
  });
}

}  // namespace

std::shared_ptr<Drafter> make_drafter(const std::shared_ptr<Packed>& table, float scale, const MaybeArray& text_ids,
                                      const std::shared_ptr<Packed>& pre, const std::vector<std::shared_ptr<BoundLayer>>& layers,
                                      const mx::array& norm, float eps, const std::shared_ptr<Packed>& head, float softcap,
                                      const std::shared_ptr<Packed>& post) {
  const int backbone = table->weight().k, size = pre->weight().n;
  require(pre->weight().k == 2 * backbone && head->weight().k == size && post->weight().k == size && post->weight().n == backbone &&
              head->weight().n == table->weight().n,
          "make_drafter: weights do not fit each other");
  require(norm.shape() == mx::Shape{size} && norm.dtype() == mx::float32, "make_drafter: norm is " + text(norm.shape()));
  require(!layers.empty(), "make_drafter: no layers");
  for (const auto& layer : layers)
    require(layer->layer->o.n() == size && !layer->layer->owns(), "make_drafter: layers read KV and have the drafter's size");
  auto drafter = std::make_shared<Drafter>(Drafter{table, pre, head, post, scale, eps, softcap, layers, {}, {}});
  const mx::array factor = evaluated(row_major(norm));
  drafter->norm.assign(factor.data<float>(), factor.data<float>() + size);
  if (text_ids) {
    require(text_ids->shape() == mx::Shape{table->weight().n} && text_ids->dtype() == mx::int32, "make_drafter: an id for each token");
    const mx::array ids = evaluated(row_major(*text_ids));
    drafter->text_ids.assign(ids.data<int>(), ids.data<int>() + table->weight().n);
  }
  return drafter;
}

mx::array draft(const std::shared_ptr<Drafter>& drafter, const mx::array& tokens, const mx::array& hidden,
                const std::vector<Tables>& tables, const std::vector<std::pair<int, int>>& places, const std::vector<int>& offsets,
                const std::vector<int>& depths, const std::vector<Draw>& draws, const std::vector<mx::array>& after) {
  const int rows = static_cast<int>(offsets.size()), backbone = drafter->table->weight().k;
  require(tokens.shape() == mx::Shape{rows} && tokens.dtype() == mx::int32, "draft: tokens are " + text(tokens.shape()) + ", expected int32 [rows]");
  require(hidden.shape() == mx::Shape{rows, backbone} && hidden.dtype() == mx::float32, "draft: hidden is " + text(hidden.shape()));
  require(static_cast<int>(depths.size()) == rows && rows > 0, "draft: a depth for each row");
  size_t total = 0;
  for (int r = 0; r < rows; ++r) {
    require(depths[r] > 0 && (r == 0 || depths[r] <= depths[r - 1]), "draft: depths do not fall");
    total += depths[r];
  }
  require(draws.size() == total, "draft: a draw for each draft");
  require(places.size() == drafter->layers.size(), "draft: a place for each layer");
  std::vector<std::vector<KVSpan>> spans;
  for (const Tables& kind : tables) {
    require(static_cast<int>(kind.size()) == rows, "draft: a table for each row");
    spans.emplace_back();
    for (int r = 0; r < rows; ++r) {
      spans.back().emplace_back(*kind[r]);
      require_held(spans.back().back(), offsets[r], offsets[r] + 1, "draft");
    }
  }
  std::vector<std::shared_ptr<const Layer>> layers;
  std::vector<KVPlace> where;
  for (size_t i = 0; i < places.size(); ++i) {
    const AttentionShape& a = drafter->layers[i]->layer->attention;
    const auto [kind, layer] = places[i];
    require(kind >= 0 && kind < static_cast<int>(spans.size()), "draft: no tables of kind " + std::to_string(kind));
    for (const KVSpan& span : spans[kind]) require_shape(span.shape(), layer, a.kv_heads, a.dim, "draft");
    where.push_back({kind, layer});
    layers.push_back(drafter->layers[i]->layer);
  }
  std::vector<mx::array> inputs{row_major(tokens), row_major(hidden)};
  inputs.insert(inputs.end(), after.begin(), after.end());
  return call("IngleDraft", {static_cast<int>(total)}, mx::int32, inputs, [=](const Pointers& at) {
    const Kernels& kernels = ingle::kernels();
    const Drafter& d = *drafter;
    const int size = d.pre->weight().n, vocab = d.head->weight().n;
    std::vector<float> both(2L * rows * backbone), inner(static_cast<long>(rows) * size), logits(static_cast<long>(rows) * vocab);
    std::vector<float> last(as<float>(at[1]), as<float>(at[1]) + static_cast<long>(rows) * backbone);
    std::vector<int> newest(as<int>(at[0]), as<int>(at[0]) + rows);
    int* out = as<int>(at.back());
    size_t done = 0;
    int active = rows;
    for (int step = 0; done < total; ++step) {
      while (depths[active - 1] <= step) --active;
      for (int r = 0; r < active; ++r) {
        float* x = both.data() + 2L * r * backbone;
        int token = newest[r];
        if (token >= 0 && !d.text_ids.empty()) token = d.text_ids[token];
        if (token >= 0)
          d.table->read_row(token, d.scale, x);
        else  // logits that were not finite: what follows is not used
          std::fill(x, x + backbone, 0.0f);
        std::memcpy(x + backbone, last.data() + static_cast<long>(r) * backbone, backbone * sizeof(float));
      }
      product(d.pre, both.data(), active, inner.data());
      Step now;
      now.groups.push_back({active, 1});
      now.offsets.assign(offsets.begin(), offsets.begin() + active);
      for (const auto& kind : spans) now.spans.emplace_back(kind.begin(), kind.begin() + active);
      now.places = where;
      now.ends.resize(active);
      run_layers(layers, now, inner.data(), size);
      for (int r = 0; r < active; ++r) {
        float* x = inner.data() + static_cast<long>(r) * size;
        kernels.rms_norm(x, d.norm.data(), d.eps, size, x);
      }
      product(d.head, inner.data(), active, logits.data());
      for (int r = 0; r < active; ++r) {
        float* y = logits.data() + static_cast<long>(r) * vocab;
        if (d.softcap > 0.0f) kernels.softcap(y, vocab, d.softcap);
        out[done] = newest[r] = choose(kernels, y, vocab, draws[done]);
        ++done;
      }
      if (done < total) product(d.post, inner.data(), active, last.data());
    }
  });
}

}  // namespace ingle
