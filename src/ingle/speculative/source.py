"""What proposes drafts: tokens that a row may go on with. The target decides; a source saves it steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from ingle.contracts.cache import RowState, StateLayout
from ingle.contracts.state import StagedChange
from ingle.decoding.sampler import Draw


class DraftRow(Protocol):
    """A row of the decode batch as a source sees it: all its tokens but the last one are computed."""

    @property
    def known(self) -> int:
        """Tokens of prompt and output."""
        ...

    def tokens(self, start: int, length: int) -> list[int]:
        """Known tokens at positions [start, start + length)."""
        ...

    def draw(self) -> Draw:
        """How its next token is chosen."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DraftBatch:
    """The decode batch between two steps."""

    rows: Sequence[DraftRow]
    state: RowState  # the target's; row i of it belongs to rows[i]
    hidden: mx.array | None  # [rows, hidden]: the target's final hidden states that the last tokens came from


@dataclass(frozen=True, slots=True)
class Proposal:
    """How a row may go on. Proposals of one `kind` are right about equally often."""

    tokens: tuple[int, ...] = ()
    kind: int = 0


NOTHING = Proposal()


class DraftSource(Protocol):
    """Used by the engine thread alone. Whatever it proposes, tokens stay what they are."""

    @property
    def looks_up(self) -> bool:
        """Proposals cost next to nothing: they come first, and the policy says how much of them is used."""
        ...

    @property
    def wants_hidden(self) -> bool:
        """It reads `DraftBatch.hidden`."""
        ...

    @property
    def layouts(self) -> tuple[StateLayout, ...]:
        """Of what it remembers for each row, beside the target."""
        ...

    def step_bytes(self, rows: int) -> int:
        """The most that proposing for so many rows holds, beside weights and states."""
        ...

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        """For each row at most `depths[r]` tokens. Row r's proposal depends on row r alone."""
        ...

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        """The batch will be `keep`, then `joining`. All that can fail happens here."""
        ...

    def drop(self) -> None:
        """Forget all rows."""
        ...


def proposals(rows: int, members: Sequence[Sequence[int]], drafted: mx.array) -> list[Proposal]:
    """What was drafted, row by row: int32 [drafts], first one for each row of members[0]. Evaluates it.

    A row ends where its logits were not finite.
    """
    values: list[int] = np.array(drafted).tolist()
    out: list[list[int]] = [[] for _ in range(rows)]
    numbers = iter(values)
    for step, active in enumerate(members):
        for r in active:
            token = next(numbers)
            if token >= 0 and len(out[r]) == step:
                out[r].append(token)
    return [Proposal(tuple(tokens)) for tokens in out]
