"""Choose the next token of every row: a pure function of (logits, parameters, seed, position).

Sampling is Gumbel-max: the token is argmax(logits / temperature + noise), with noise that depends
on (seed, position, token) only. Truncations (top-k, top-p, min-p) become a threshold on the scaled
logits, and tokens that tie with the last one kept are kept too, so no order among equals matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ingle.contracts.request import SamplingParams, TokenLogprobs
from ingle.decoding.logprobs import token_logprobs
from ingle.decoding.processors import TokenHistory, needs_processing, process
from ingle.decoding.rng import gumbel, noise_keys


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row needs for its next token."""

    params: SamplingParams
    position: int  # that the sampled token will take in the sequence
    generated: int  # tokens the row has put out so far
    history: TokenHistory | None = None  # given when penalties ask for it


@dataclass(frozen=True, slots=True)
class Sampled:
    """`token` is None when the row's logits are not finite numbers."""

    token: int | None
    logprobs: TokenLogprobs | None = None


def sample(logits: mx.array, draws: Sequence[Draw]) -> list[Sampled]:
    """Next tokens from float32 logits [rows, vocab], one draw for each row. Evaluates them.

    Row r's result depends on logits[r] and draws[r] alone.
    """
    # The sum of a row is finite exactly when all its values are: one cheap pass finds a broken row.
    finite = mx.isfinite(mx.sum(logits, axis=-1))
    tokens = _choose(_processed(logits, draws), draws)
    mx.eval(finite, tokens, logits)
    good: list[bool] = np.array(finite).tolist()
    chosen: list[int] = np.array(tokens).tolist()
    return [
        Sampled(token, _logprobs(logits[r], token, draw)) if ok else Sampled(None)
        for r, (ok, token, draw) in enumerate(zip(good, chosen, draws, strict=True))
    ]


def _logprobs(logits: mx.array, token: int, draw: Draw) -> TokenLogprobs | None:
    top = draw.params.top_logprobs
    return None if top is None else token_logprobs(logits, token, top)


def _processed(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    if not any(needs_processing(d.params, d.generated) for d in draws):
        return logits
    return mx.stack(
        [
            process(logits[r], d.params, d.history, d.generated)
            if needs_processing(d.params, d.generated)
            else logits[r]
            for r, d in enumerate(draws)
        ]
    )


def _choose(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    greedy = mx.argmax(logits, axis=-1)
    sampled = [r for r, d in enumerate(draws) if not d.params.greedy]
    if not sampled:
        return greedy
    rows = logits if len(sampled) == len(draws) else logits[mx.array(sampled)]
    params = [draws[r].params for r in sampled]
    scaled = rows / _column([p.temperature for p in params])
    keys = noise_keys([p.seed for p in params], [draws[r].position for r in sampled])
    noisy = mx.where(_kept(scaled, params), scaled + gumbel(keys, logits.shape[-1]), -mx.inf)
    return mx.put_along_axis(
        greedy, mx.array(sampled), mx.argmax(noisy, axis=-1).astype(greedy.dtype), axis=0
    )


def _kept(scaled: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    """Which tokens survive truncation, bool [rows, vocab]. Filters apply in the order k, p, min-p."""
    threshold = _column([-float("inf")] * len(params))
    vocab = scaled.shape[-1]
    truncated = [p.top_k not in (0, vocab) or p.top_p < 1.0 for p in params]
    if any(truncated):
        descending = -mx.sort(-scaled, axis=-1)
        ranks = mx.arange(vocab)[None]
        k = mx.array([[min(p.top_k or vocab, vocab)] for p in params])
        top = mx.where(ranks < k, descending, -mx.inf)
        # A token stays while the probability before it is below top_p; the likeliest always stays.
        probabilities = mx.softmax(top, axis=-1, precise=True)
        before = mx.cumsum(probabilities, axis=-1) - probabilities
        stays = ((before < _column([p.top_p for p in params])) | (ranks == 0)) & (top > -mx.inf)
        lowest = mx.min(mx.where(stays, descending, mx.inf), axis=-1, keepdims=True)
        threshold = mx.where(mx.array(truncated)[:, None], lowest, threshold)
    if any(p.min_p > 0 for p in params):
        peak = mx.max(scaled, axis=-1, keepdims=True)
        threshold = mx.maximum(threshold, peak + mx.log(_column([p.min_p for p in params])))
    return scaled >= threshold


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), mx.float32)[:, None]
