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
from ingle.decoding.rng import noise_key
from ingle.kernels import ops


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row needs for its next token."""

    params: SamplingParams
    position: int  # that the sampled token will take in the sequence
    generated: int  # tokens the row has put out so far
    history: TokenHistory | None = None  # given when penalties ask for it


@dataclass(frozen=True, slots=True)
class Sampled:
    """`token` is None when the row's logits hold NaN or +inf, or nothing but -inf."""

    token: int | None
    logprobs: TokenLogprobs | None = None


def sample(logits: mx.array, draws: Sequence[Draw]) -> list[Sampled]:
    """Next tokens from float32 logits [rows, vocab], one draw for each row. Evaluates them.

    Row r's result depends on logits[r] and draws[r] alone.
    """
    tokens = ops.choose(_processed(logits, draws), [_choice(draw) for draw in draws])
    mx.eval(tokens, logits)
    chosen: list[int] = np.array(tokens).tolist()
    return [
        Sampled(None) if token < 0 else Sampled(token, _logprobs(logits[r], token, draw))
        for r, (token, draw) in enumerate(zip(chosen, draws, strict=True))
    ]


def _choice(draw: Draw) -> ops.Choice:
    p = draw.params
    return ops.Choice(p.temperature, p.top_k, p.top_p, p.min_p, noise_key(p.seed, draw.position))


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
