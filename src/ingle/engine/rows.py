"""A running sequence: what is known, what is computed, and where its KV lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ingle.contracts.cache import RowState
from ingle.contracts.grammar import GrammarState, TokenMask
from ingle.contracts.request import ContentSpan, Request, Subscriber
from ingle.decoding.processors import TokenHistory, needs_history
from ingle.decoding.sampler import Draw
from ingle.engine.prompt_cache import BlockKey, Lease
from ingle.speculative.policy import Rates


@dataclass(slots=True, eq=False)
class Row:
    """Engine-private progress of one request. It has no mode: `pending` decides what it needs.

    `state` is that of a row that computes on its own (a prompt). A row without one is either new or a
    member of the decode batch.
    """

    request: Request
    subscriber: Subscriber
    computed: int = 0  # tokens whose KV exists
    output: list[int] = field(default_factory=list[int])
    state: RowState | None = None
    hidden: mx.array | None = None  # [1, hidden]: see `DecodeBatch.hidden`; until it joins
    suspect: bool = False  # its last step failed: it runs alone until it has put out a token
    history: TokenHistory | None = None
    arrival: int = 0  # number among all requests of this engine
    skipped: int = 0  # steps since its last window
    started: bool = False  # it has run before
    lease: Lease | None = None  # of the prompt cache
    keys: list[BlockKey] = field(default_factory=list[BlockKey])  # of its whole blocks, as far as asked for
    blocks: tuple[tuple[int, int], ...] = ()  # [start, end) of spans that one window computes whole
    grammar: GrammarState | None = None  # where its output is in the request's grammar
    pooled: NDArray[np.float64] | None = None  # [hidden]: sum of the prompt's hidden states so far
    rates: Rates = field(default_factory=Rates)  # how often its drafts are right
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        if needs_history(self.request.sampling):
            self.history = TokenHistory(frozenset(self.request.prompt), {})
        if self.request.grammar is not None:
            self.grammar = self.request.grammar.start()

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def known(self) -> int:
        return len(self.request.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        return self.known - self.computed

    @property
    def room(self) -> int:
        """Tokens that it may still put out."""
        return self.request.sampling.max_tokens - len(self.output)

    def tokens(self, start: int, length: int) -> list[int]:
        """Known tokens at positions [start, start + length)."""
        prompt, end = self.request.prompt, start + length
        behind = len(prompt)
        return [*prompt[start:end], *self.output[max(0, start - behind) : max(0, end - behind)]]

    def push(self, token: int) -> None:
        self.output.append(token)
        if self.history is not None:
            self.history.add(token)
        if self.grammar is not None:
            self.grammar.advance(token)

    @property
    def complete(self) -> bool:
        """Nothing may follow, by its grammar or by its length."""
        return self.room <= 0 or (self.grammar is not None and self.grammar.complete)

    def draw(self, drafts: tuple[int, ...] = (), masks: tuple[TokenMask | None, ...] = ()) -> Draw:
        return Draw(self.request.sampling, self.known, len(self.output), self.history, drafts, masks)

    def forget(self) -> None:
        """Drop all state: everything known becomes pending and is computed again."""
        self.computed = 0
        self.state = self.hidden = self.pooled = None

    def pool(self, hidden: NDArray[np.float32]) -> None:
        """Take in the hidden states [tokens, hidden] of the next tokens of the prompt.

        They are added one after the other, so the sum does not depend on how the prompt was cut.
        """
        before = [] if self.pooled is None else [self.pooled]
        self.pooled = np.add.reduce(np.stack([*before, *hidden.astype(np.float64)]), axis=0)

    @property
    def embedding(self) -> NDArray[np.float32]:
        """What was pooled, once the prompt is computed."""
        assert self.pooled is not None
        count = len(self.request.prompt) if self.request.pooling == "mean" else 1
        return (self.pooled / count).astype(np.float32)


def whole_blocks(content: Sequence[ContentSpan]) -> tuple[tuple[int, int], ...]:
    """Places of pictures and frames, whose tokens see each other. Sounds attend like text."""
    return tuple(
        (span.start, span.end) for span in content if span.block is not None and span.block.kind != "audio"
    )
