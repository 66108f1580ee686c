"""Drafts from the row's own text: what followed the last time that it ended like now.

Prompt look-up decoding (Saxena, 2023) with the output included. Editing, quoting and code repeat a lot;
free text does not, and then nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingle.contracts.cache import StateLayout
from ingle.contracts.state import StagedChange
from ingle.speculative.source import NOTHING, DraftBatch, DraftRow, Proposal

SIZES = (5, 3)
"""Tokens of the ending that must have occurred before. The longest decides: it is right more often, and so
proposals of each size are a kind of their own."""


class _Places:
    """Of one row: for each ending the position behind its last occurrence but the present one."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._tokens: list[int] = []
        self._behind: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in sizes)

    def read(self, row: DraftRow) -> None:
        """Take in what the row has got since. The newest ending is looked up, not entered."""
        tokens = self._tokens
        first = len(tokens)
        tokens += row.tokens(first, row.known - first)
        for size, behind in zip(self._sizes, self._behind, strict=True):
            for end in range(max(first, size), len(tokens)):
                behind[tuple(tokens[end - size : end])] = end

    def propose(self, depth: int) -> Proposal:
        tokens = self._tokens
        for size, behind in zip(self._sizes, self._behind, strict=True):
            place = behind.get(tuple(tokens[-size:]))
            if place is not None:
                return Proposal(_continued(tokens, place, depth), size)
        return NOTHING


def _continued(tokens: list[int], place: int, depth: int) -> tuple[int, ...]:
    """What stands from `place` on; what runs past the end goes round."""
    period = len(tokens) - place
    return tuple([tokens[place + i % period] for i in range(depth)])


class NgramSource:
    """See `source.DraftSource`."""

    looks_up = True
    wants_hidden = False
    layouts: tuple[StateLayout, ...] = ()

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        """`sizes` go from the largest to the smallest."""
        self._sizes = sizes
        self._places: dict[DraftRow, _Places] = {}

    def step_bytes(self, rows: int) -> int:
        return 0

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        out: list[Proposal] = []
        for row, depth in zip(batch.rows, depths, strict=True):
            places = self._places[row]
            places.read(row)
            out.append(places.propose(depth) if depth else NOTHING)
        return out

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        places = {row: self._places[row] for row in keep} | {row: _Places(self._sizes) for row in joining}

        def publish() -> None:
            self._places = places

        return StagedChange(publish)

    def drop(self) -> None:
        self._places = {}
