"""Log-probabilities of the model's own distribution, for the rows that ask for them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ingle.contracts.request import TokenLogprobs


def token_logprobs(logits: mx.array, token: int, top: int) -> TokenLogprobs:
    """The sampled token's logprob and the `top` likeliest tokens of one row [vocab], ties by id."""
    logprobs = np.array(logits - mx.logsumexp(logits))
    chosen = float(logprobs[token])
    if top == 0:
        return TokenLogprobs(chosen)
    kept = min(top, logprobs.size)
    threshold = np.partition(logprobs, -kept)[-kept]
    candidates = np.flatnonzero(logprobs >= threshold)
    order = candidates[np.lexsort((candidates, -logprobs[candidates]))][:kept]
    return TokenLogprobs(chosen, tuple((int(i), float(logprobs[i])) for i in order))
