"""Draft sources that are right, wrong or anything between, as a test wants them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from ingle.contracts.cache import StateLayout
from ingle.contracts.state import StagedChange
from ingle.engine.rows import Row
from ingle.speculative.policy import Option, Rates
from ingle.speculative.source import DraftBatch, DraftRow, Proposal
from support.equality import Subject


class FixedPolicy:
    """Depths from a list that goes round, for each row another: what is drafted does not depend on the clock."""

    holds = 1

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths = itertools.cycle(depths)

    def depths(self, options: Sequence[Option]) -> list[int]:
        return [min(next(self._depths), option.most) for option in options]

    def rate(self, rates: Rates, kind: int) -> float:
        """Look-ups are preferred where there are any."""
        return float(kind)

    def observe_row(self, rates: Rates, kind: int, right: int, *, wrong: bool) -> None:
        pass

    def observe_step(self, rows: int, drafts: int, accepted: int, seconds: float, *, alone: bool) -> None:
        pass

    def observe_drafting(self, rows: int, depth: int, seconds: float) -> None:
        pass

    def spend(self, rows: int, seconds: float) -> None:
        pass

    def solvent(self, rows: int) -> bool:
        return True


class Source:
    """Asks `propose` for each row; keeps nothing."""

    looks_up = False
    wants_hidden = False
    layouts: tuple[StateLayout, ...] = ()

    def __init__(self, propose: Callable[[Row, int], Sequence[int]]) -> None:
        self._propose = propose

    def step_bytes(self, rows: int) -> int:
        return 0

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        rows = cast("Sequence[Row]", batch.rows)
        return [Proposal(tuple(self._propose(row, depth))) for row, depth in zip(rows, depths, strict=True)]

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        return StagedChange(lambda: None)

    def drop(self) -> None:
        pass


def right_for_a_while(subject: Subject) -> Source:
    """What the row will say, but for one token somewhere: at each place in its turn, or nowhere."""
    places = itertools.count()

    def propose(row: Row, depth: int) -> list[int]:
        request = replace(row.request, id="any")
        said = subject.reference(request)[0][len(row.output) : len(row.output) + depth]
        wrong = next(places) % (depth + 1)
        return [(t + 1) % subject.vocab if i == wrong else t for i, t in enumerate(said)]

    return Source(propose)


def always_right(subject: Subject) -> Source:
    return Source(lambda row, depth: subject.reference(row.request)[0][len(row.output) :][:depth])


def anything(subject: Subject) -> Source:
    rng = random.Random(7)
    return Source(lambda row, depth: [rng.randrange(subject.vocab) for _ in range(rng.randint(0, depth))])


def always_wrong(subject: Subject) -> Source:
    """Never what comes, and of tokens that the row has seen: they would be believed if anything could be."""

    def propose(row: Row, depth: int) -> list[int]:
        said = subject.reference(row.request)[0][len(row.output) : len(row.output) + depth]
        known = row.tokens(0, row.known)
        return [next(k for k in (*known, *range(3, subject.vocab)) if k != t) for t in said]

    return Source(propose)
