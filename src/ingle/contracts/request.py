"""What the engine is asked for and what it answers: plain frozen data, no tensors, no transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingle.contracts.grammar import Grammar
from ingle.contracts.media import Block
from ingle.errors import ContextOverflow, InvalidRequest

Pooling: TypeAlias = Literal["mean", "last"]
FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from a row of logits.

    The token is a pure function of the logits, these parameters, the seed and the position.
    Ranges are checked here, against nothing but the values themselves; what depends on a model
    (vocabulary, context) is checked by `Request.check`.

    Raises:
        ValueError: a value is out of its range; the message names the field, value and limit.
    """

    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0  # smallest set of tokens whose probability reaches this; (0, 1]
    top_k: int = 0  # keep the k likeliest; 0 means all
    min_p: float = 0.0  # keep tokens at least this fraction of the likeliest; [0, 1]
    seed: int = 0  # unsigned 64 bits
    repetition_penalty: float = (
        1.0  # divides (or multiplies, if negative) logits of tokens seen in prompt or output
    )
    presence_penalty: float = 0.0  # subtracted once from tokens seen in the output
    frequency_penalty: float = 0.0  # subtracted for each time a token was seen in the output
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    top_logprobs: int | None = None  # None: no logprobs; 0: the sampled token's only
    max_tokens: int = 16
    min_tokens: int = 0  # stop tokens are masked until this many tokens are out
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0.0, 2.0)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        _between("top_k", self.top_k, 0, 2**31 - 1)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("seed", self.seed, 0, 2**64 - 1)
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise ValueError(f"repetition_penalty must be in (0, 10], got {self.repetition_penalty}")
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias has {len(self.logit_bias)} entries, the limit is {MAX_LOGIT_BIAS}")
        for token, bias in self.logit_bias.items():
            _between(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if self.top_logprobs is not None:
            _between("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _between("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _between("min_tokens", self.min_tokens, 0, self.max_tokens)

    @property
    def greedy(self) -> bool:
        """Below 1e-5 a temperature only overflows: it means greedy too."""
        return self.temperature < 1e-5


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise ValueError(f"{name} must be between {low} and {high}, got {value}")


@dataclass(frozen=True, slots=True)
class ContentSpan:
    """Prompt positions [start, end) that hold the soft tokens of one piece of media."""

    start: int
    end: int
    digest: bytes  # full digest of everything that decides the features: content, size, settings
    block: Block | None = field(
        default=None, compare=False, repr=False
    )  # the features; None in tests of keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate. Immutable: what a row has done so far lives in the engine's `Row`."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    content: tuple[ContentSpan, ...] = ()
    priority: int = 0  # higher goes first
    cache_key: bytes | None = b""  # only requests with equal keys share KV; None: with nobody
    grammar: Grammar | None = field(default=None, compare=False, repr=False)  # that its tokens follow
    pooling: Pooling | None = None  # nothing is generated: the prompt's hidden states are wanted, as one

    def check(self, *, vocab_size: int, context_length: int) -> None:
        """Refuse what this model cannot run.

        Raises:
            InvalidRequest: an empty prompt, or a token id outside the vocabulary.
            ContextOverflow: a sequence longer than the context; the message names both numbers.
        """
        if not self.prompt:
            raise InvalidRequest("the prompt has no tokens")
        for name, ids in (
            ("prompt", self.prompt),
            ("logit_bias", self.sampling.logit_bias),
            ("stop_token_ids", self.sampling.stop_token_ids),
        ):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidRequest(
                        f"{name} holds token id {token}, the vocabulary has ids 0 to {vocab_size - 1}"
                    )
        total = len(self.prompt) + self.sampling.max_tokens
        if total > context_length:
            raise ContextOverflow(
                f"{len(self.prompt)} prompt tokens and max_tokens {self.sampling.max_tokens} make "
                f"{total}, the context holds {context_length}"
            )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logs under the model's own distribution, before bias, penalties and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first, ties by id


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a request that gets to run: its row exists."""

    cached_tokens: int  # of the prompt, whose KV was there already


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """Tokens that are final, in order. A stop token that ended the row is not among them."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per token when asked for
    drafted: int = 0  # tokens that were proposed to the model for this request, so far
    accepted: int = 0  # of them those that it would have said itself


@dataclass(frozen=True, slots=True)
class Embedded:
    """Of a request with `pooling`: its prompt as one vector."""

    values: NDArray[np.float32]  # [hidden], not normalised


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request; every accepted request gets exactly one."""

    reason: FinishReason
    detail: str | None = None  # for people: what failed, or why it was cancelled
    stop_token: int | None = None  # the stop token that ended the row
    refused: bool = False  # of "error": the request itself is the cause, such as a grammar over its limits
    drafted: int = 0  # see `TokensCommitted`
    accepted: int = 0


EngineEvent: TypeAlias = Started | TokensCommitted | Embedded | Finished


class Subscriber(Protocol):
    """Receives events on the engine thread: must not block and must not raise.

    One call per engine step carries all events of that step for this subscriber, in order.
    """

    def deliver(self, events: list[tuple[str, EngineEvent]]) -> None: ...
