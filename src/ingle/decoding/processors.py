"""Changes to a row of logits that depend on what the row has seen: bias, penalties, minimum length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ingle.contracts.grammar import TokenMask
from ingle.contracts.request import SamplingParams


@dataclass(slots=True)
class TokenHistory:
    """How often a row's tokens occurred. Kept by the row, read by its processors."""

    prompt: frozenset[int]
    output: dict[int, int]  # token id -> times generated

    def add(self, token: int) -> None:
        self.output[token] = self.output.get(token, 0) + 1

    def with_token(self, token: int) -> TokenHistory:
        """A copy that has seen one more."""
        out = TokenHistory(self.prompt, dict(self.output))
        out.add(token)
        return out


def needs_history(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


def process(
    logits: mx.array,
    params: SamplingParams,
    history: TokenHistory | None,
    generated: int,
    mask: TokenMask | None = None,
) -> mx.array:
    """One row [vocab] with its penalties, bias, grammar and minimum length applied, in this order.

    Repetition: a token of prompt or output has its logit divided by the penalty if positive, else
    multiplied (Keskar et al., 2019). Presence and frequency: subtracted, output tokens only, as the
    OpenAI API defines them. `generated` is the number of tokens the row has put out. Tokens that `mask`
    does not allow, or that it does not reach, get -inf; a grammar that allows nothing but the end wins over
    the minimum length.
    """
    if history is not None:
        if params.repetition_penalty != 1.0:
            seen = sorted(history.prompt | history.output.keys())
            if seen:
                ids = mx.array(seen)
                old = logits[ids]
                penalty = params.repetition_penalty
                logits = mx.put_along_axis(
                    logits, ids, mx.where(old > 0, old / penalty, old * penalty), axis=0
                )
        if history.output and (params.presence_penalty or params.frequency_penalty):
            logits = _shift(
                logits,
                {
                    token: -(params.presence_penalty + count * params.frequency_penalty)
                    for token, count in history.output.items()
                },
            )
    if params.logit_bias:
        logits = _shift(logits, params.logit_bias)
    if mask is not None:
        logits = mx.where(_fitted(mask, logits.shape[0]), logits, -float("inf"))
    if generated < params.min_tokens and params.stop_token_ids and not _must_end(mask, params):
        logits = _shift(logits, dict.fromkeys(params.stop_token_ids, -float("inf")))
    return logits


def needs_processing(params: SamplingParams, generated: int, mask: TokenMask | None = None) -> bool:
    return (
        mask is not None
        or needs_history(params)
        or bool(params.logit_bias)
        or (generated < params.min_tokens and bool(params.stop_token_ids))
    )


def _fitted(mask: TokenMask, vocab: int) -> mx.array:
    """The mask for a row of logits; entries behind the tokenizer's vocabulary are padding."""
    fitted: Any = mask[:vocab] if len(mask) >= vocab else np.pad(mask, (0, vocab - len(mask)))
    return mx.array(fitted)


def _must_end(mask: TokenMask | None, params: SamplingParams) -> bool:
    if mask is None:
        return False
    stops = sum(bool(mask[token]) for token in params.stop_token_ids if token < len(mask))
    return stops > 0 and int(np.count_nonzero(mask)) == stops


def _shift(logits: mx.array, amounts: Mapping[int, float]) -> mx.array:
    ids = mx.array(list(amounts))
    return mx.put_along_axis(logits, ids, logits[ids] + mx.array(list(amounts.values()), mx.float32), axis=0)
