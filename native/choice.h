// Sampling one row: filters without a sorted copy of the vocabulary, then the best of noisy values.
#pragma once

#include "kernels.h"

namespace ingle {

// Filters: `top_k` 0, `top_p` 1 and `min_p` 0 mean none. They apply in this order.
struct Draw {
  float temperature;  // 0: greedy
  int top_k;
  float top_p, min_p;
  unsigned key[2];
};

// The token, or -1 when a logit is NaN or +inf, or all are -inf. A function of its arguments alone.
int choose(const Kernels& kernels, const float* logits, int vocab, const Draw& draw);

}  // namespace ingle
