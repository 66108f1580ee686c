#include "choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "phases.h"

namespace ingle {
namespace {

constexpr int kChunk = 4096;

// The `count` greatest of x, in any order.
std::vector<float> greatest(const Kernels& kernels, const float* x, int n, int count) {
  std::vector<float> kept;
  std::vector<float> found(kChunk);
  float bar = -std::numeric_limits<float>::infinity();  // `count` values at or above it are kept already
  auto cut = [&] {
    if (static_cast<int>(kept.size()) <= count) return;
    std::nth_element(kept.begin(), kept.begin() + count - 1, kept.end(), std::greater<>());
    kept.resize(count);
    bar = kept[count - 1];
  };
  for (int at = 0; at < n; at += kChunk) {
    const int more = kernels.collect(x + at, std::min(kChunk, n - at), bar, found.data());
    kept.insert(kept.end(), found.begin(), found.begin() + more);
    if (static_cast<int>(kept.size()) >= 2 * count) cut();
  }
  cut();
  return kept;
}

// The least value that top-k and top-p keep; ties with it stay too.
float filter_threshold(const Kernels& kernels, const float* x, int n, float most, const Draw& draw) {
  const bool by_count = draw.top_k > 0 && draw.top_k < n;
  std::vector<float> kept;
  double mass = 0.0;
  if (by_count) {
    kept = greatest(kernels, x, n, draw.top_k);
    if (draw.top_p >= 1.0f) return *std::min_element(kept.begin(), kept.end());
    for (float v : kept) mass += std::exp(static_cast<double>(v) - most);
  } else {
    mass = kernels.exp_sum(x, n, most);
    // All tokens below this bar together weigh less than half of what top-p leaves out.
    const double bar = most + std::log((1.0 - draw.top_p) * mass / (2.0 * n));
    kept.resize(n);
    const float below = std::nextafter(static_cast<float>(bar), -std::numeric_limits<float>::infinity());
    kept.resize(kernels.collect(x, n, below, kept.data()));
  }
  std::sort(kept.begin(), kept.end(), std::greater<>());
  // A token stays while the probability before it is below top_p; the likeliest always stays.
  double before = 0.0;
  float least = most;
  for (float v : kept) {
    if (v != most && before >= draw.top_p * mass) break;
    least = v;
    before += std::exp(static_cast<double>(v) - most);
  }
  return least;
}

}  // namespace

int choose(const Kernels& kernels, const float* logits, int vocab, const Draw& draw) {
  float most;
  if (draw.temperature == 0.0f)
    return kernels.scaled(logits, vocab, 1.0f, nullptr, &most) ? kernels.find(logits, vocab, most) : -1;
  float* x = thread_scratch(vocab);
  if (!kernels.scaled(logits, vocab, draw.temperature, x, &most)) return -1;
  float threshold = -std::numeric_limits<float>::infinity();
  if ((draw.top_k > 0 && draw.top_k < vocab) || draw.top_p < 1.0f)
    threshold = filter_threshold(kernels, x, vocab, most, draw);
  if (draw.min_p > 0.0f) threshold = std::max(threshold, most + std::log(draw.min_p));
  return kernels.noisy_best(x, vocab, threshold, draw.key, kernels.find(x, vocab, most));
}

}  // namespace ingle
