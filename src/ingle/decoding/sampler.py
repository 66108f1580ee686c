"""Choose the next token of every row: a pure function of (logits, parameters, seed, position).

Sampling is Gumbel-max: the token is argmax(logits / temperature + noise), with noise that depends
on (seed, position, token) only. Truncations (top-k, top-p, min-p) become a threshold on the scaled
logits, and tokens that tie with the last one kept are kept too, so no order among equals matters.

A draft is accepted when it is the very token that is chosen at its position, with everything that the row
would have seen by then: so drafts change how many tokens a step gives, and never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ingle.contracts.grammar import TokenMask
from ingle.contracts.request import SamplingParams, TokenLogprobs
from ingle.decoding.logprobs import token_logprobs
from ingle.decoding.processors import TokenHistory, needs_processing, process
from ingle.decoding.rng import noise_key
from ingle.kernels import ops


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row needs for its next token, or for its next ones."""

    params: SamplingParams
    position: int  # that the sampled token will take in the sequence
    generated: int  # tokens the row has put out so far
    history: TokenHistory | None = None  # given when penalties ask for it
    drafts: tuple[int, ...] = ()  # what the next tokens may be
    masks: tuple[TokenMask | None, ...] = ()  # what a grammar allows: next, and behind drafts that it allows

    @property
    def choice(self) -> ops.Choice:
        p = self.params
        return ops.Choice(p.temperature, p.top_k, p.top_p, p.min_p, noise_key(p.seed, self.position))

    def processed(self) -> bool:
        """Logits are changed before the choice."""
        return needs_processing(self.params, self.generated, self.mask)

    @property
    def mask(self) -> TokenMask | None:
        """Of the next token."""
        return self.masks[0] if self.masks else None

    def ahead(self, step: int) -> Draw:
        """How the token `step` places further will be drawn: with its own noise. The tokens between, and
        grammars, are not followed."""
        return Draw(self.params, self.position + step, self.generated + step, self.history)

    def positions(self) -> Sequence[Draw]:
        """This token's draw, and that of the token behind each draft if the drafts before are accepted."""
        if not self.drafts:
            return [self]
        out = [replace(self, drafts=())]
        for token in self.drafts:
            before = out[-1]
            history = None if before.history is None else before.history.with_token(token)
            out.append(
                replace(
                    before,
                    position=before.position + 1,
                    generated=before.generated + 1,
                    history=history,
                    masks=before.masks[1:],
                )
            )
        return out


@dataclass(frozen=True, slots=True)
class Sampled:
    """`token` is None when the row's logits hold NaN or +inf, or nothing but -inf."""

    token: int | None
    logprobs: TokenLogprobs | None = None


def sample(logits: mx.array, draws: Sequence[Draw]) -> list[tuple[Sampled, ...]]:
    """Next tokens of each draw: one, and one more for each draft that is accepted. Evaluates the logits.

    float32 logits [positions, vocab] hold one line for each draw and one for each of its drafts behind it.
    What a draw gets depends on its own lines alone. Behind a stop token, or logits that are not finite,
    nothing is accepted.
    """
    positions = [position for draw in draws for position in draw.positions()]
    tokens = choose(logits, positions)
    mx.eval(tokens, logits)
    chosen: list[int] = np.array(tokens).tolist()
    out: list[tuple[Sampled, ...]] = []
    first = 0
    for draw in draws:
        line = chosen[first : first + len(draw.drafts) + 1]
        kept = line[: _accepted(line, draw) + 1]
        out.append(tuple([_sampled(logits, first + i, token, draw) for i, token in enumerate(kept)]))
        first += len(line)
    return out


def choose(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """The token of each draw, its drafts aside, from a line of logits each: int32 [draws], lazy.

    -1 where the logits hold NaN or +inf, or nothing but -inf.
    """
    return ops.choose(_processed(logits, draws), [draw.choice for draw in draws])


def _accepted(line: Sequence[int], draw: Draw) -> int:
    """How many drafts are what was chosen."""
    for number, (token, draft) in enumerate(zip(line, draw.drafts, strict=False)):
        if token != draft or token in draw.params.stop_token_ids:
            return number
    return len(draw.drafts)


def _sampled(logits: mx.array, line: int, token: int, draw: Draw) -> Sampled:
    return Sampled(None) if token < 0 else Sampled(token, _logprobs(logits[line], token, draw))


def _logprobs(logits: mx.array, token: int, draw: Draw) -> TokenLogprobs | None:
    top = draw.params.top_logprobs
    return None if top is None else token_logprobs(logits, token, top)


def _processed(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    if not any(d.processed() for d in draws):
        return logits
    return mx.stack(
        [
            process(logits[r], d.params, d.history, d.generated, d.mask) if d.processed() else logits[r]
            for r, d in enumerate(draws)
        ]
    )
