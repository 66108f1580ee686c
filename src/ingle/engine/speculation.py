"""Drafts of the engine: asks the sources, lets the policy decide, and learns from what the target said."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingle.contracts.cache import StateLayout
from ingle.decoding.sampler import Sampled
from ingle.engine.batch import DecodeBatch
from ingle.engine.rows import Row
from ingle.engine.scheduler import Plan
from ingle.speculative.policy import MAX_DEPTH, Option, Policy
from ingle.speculative.source import NOTHING, DraftBatch, DraftSource, Proposal

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpeculationCounters:
    """Only grow; written by the engine thread."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0  # in the sources
    failures: int = 0


class Speculation:
    """Up to two sources: one that looks up, one that computes. A row takes the one that is right more often.

    Used by the engine thread alone.
    """

    def __init__(self, sources: Sequence[DraftSource], layout: StateLayout) -> None:
        """`layout` is the target's: drafts that it, or a source, could not take back are not asked for."""
        self.policy, self.counters = Policy(), SpeculationCounters()
        self.sources = sources
        self._looking = next((source for source in sources if source.looks_up), None)
        self._computing = next((source for source in sources if not source.looks_up), None)
        kinds = [k for some in (layout, *(one for s in sources for one in s.layouts)) for k in some.kinds]
        slacks = [kind.retention.slack for kind in kinds if kind.retention.window is not None]
        self._deepest = min([MAX_DEPTH, *slacks])
        self._found: dict[Row, Proposal] = {}  # looked up for this step, used or not
        self._drafted: dict[Row, Proposal] = {}
        self._decided: tuple[Sequence[Row], list[int]] = (), []  # what the policy said of these rows
        self._rounds = 0  # that its word still holds
        self._on = self._computing is not None  # it said that somebody should draft

    def wants_hidden(self, rows: int) -> bool:
        """The next round of a batch of `rows` may need what the step's newest tokens came from.

        To keep it takes time: it is not kept while nothing is drafted, so the first round after that comes a
        step later.
        """
        wanted = self._computing is not None and self._computing.wants_hidden
        return wanted and self._on and self.policy.solvent(max(rows, 1))

    def propose(self, batch: DecodeBatch) -> dict[str, tuple[int, ...]]:
        """Drafts of the next step, by row. Sources that fail give none: nothing is lost but time."""
        self._found, self._drafted = {}, {}
        if batch.state is None or not self.policy.solvent(len(batch.rows)):
            return {}
        rows, started = batch.rows, time.monotonic()
        try:
            return self._propose(rows, DraftBatch(rows, batch.state, batch.hidden))
        except Exception as error:
            _log.warning("no drafts in this step: %s", error, exc_info=error)
            error.with_traceback(None)
            self.counters.failures += 1
            for source in self.sources:
                source.drop()
                source.stage((), rows).publish()
            return {}
        finally:
            seconds = time.monotonic() - started
            self.counters.seconds += seconds
            self.policy.spend(len(rows), seconds)

    def _propose(self, rows: Sequence[Row], batch: DraftBatch) -> dict[str, tuple[int, ...]]:
        if self._looking is not None:
            proposals = self._looking.propose(batch, [self._most(row) for row in rows])
            self._found = {row: p for row, p in zip(rows, proposals, strict=True) if p.tokens}
        looked_up = {row: p for row, p in self._found.items() if self._prefers(row, p)}
        depths = self._weigh(rows, looked_up) if looked_up else self._held(rows)
        computed = [0 if row in looked_up else depth for row, depth in zip(rows, depths, strict=False)]
        if self._computing is not None and any(computed):
            self._compute(self._computing, rows, batch, computed)
        drafts: dict[str, tuple[int, ...]] = {}
        for row, depth in zip(rows, depths, strict=False):
            proposal = looked_up.get(row) or self._drafted.get(row, NOTHING)
            if depth and proposal.tokens:
                drafts[row.id] = proposal.tokens[:depth]
        return drafts

    def _prefers(self, row: Row, found: Proposal) -> bool:
        if self._computing is None:
            return True
        rate = self.policy.rate
        return rate(row.rates, found.kind) >= rate(row.rates, NOTHING.kind)

    def _held(self, rows: Sequence[Row]) -> list[int]:
        """What the policy says of drafts to be computed. It is asked now and then: what it weighs changes
        slowly, and weighing takes time."""
        if self._computing is None or not any(self._most(row) for row in rows):
            return []
        if self._rounds == 0 or (self._on and self._decided[0] is not rows):
            depths = self._weigh(rows, {})
            self._decided, self._rounds, self._on = (rows, depths), self.policy.holds, any(depths)
        self._rounds -= 1
        return self._decided[1] if self._on else []

    def _weigh(self, rows: Sequence[Row], looked_up: Mapping[Row, Proposal]) -> list[int]:
        options: list[Option] = []
        for row in rows:
            found = looked_up.get(row)
            if found is not None:
                chance = self.policy.rate(row.rates, found.kind)
                options.append(Option(chance, len(found.tokens), free=True))
            else:
                most = 0 if self._computing is None else self._most(row)
                options.append(Option(self.policy.rate(row.rates, NOTHING.kind), most))
        return self.policy.depths(options)

    def _compute(
        self, source: DraftSource, rows: Sequence[Row], batch: DraftBatch, depths: Sequence[int]
    ) -> None:
        depths = [min(depth, self._most(row)) for depth, row in zip(depths, rows, strict=True)]
        if not any(depths) or (source.wants_hidden and batch.hidden is None):
            return
        started = time.monotonic()
        proposals = source.propose(batch, depths)
        if any(p.tokens for p in proposals):
            self.policy.observe_drafting(len(rows), max(depths), time.monotonic() - started)
        self._drafted = {row: p for row, p in zip(rows, proposals, strict=True) if p.tokens}

    def _most(self, row: Row) -> int:
        return max(0, min(self._deepest, row.room - 1))

    def learn(self, chosen: Plan, sampled: Mapping[str, Sequence[Sampled]], seconds: float) -> None:
        """What became of the drafts of a step that took `seconds`."""
        started, accepted = time.monotonic(), 0
        for proposals in (self._found, self._drafted):
            for row, proposal in proposals.items():
                right, wrong = _right(proposal.tokens, sampled.get(row.id, ()))
                self.policy.observe_row(row.rates, proposal.kind, right, wrong=wrong)
        for row in {**self._found, **self._drafted}:
            drafts = chosen.drafts.get(row.id, ())
            if drafts:
                right, _ = _right(drafts, sampled.get(row.id, ()))
                row.drafted += len(drafts)
                row.accepted += right
                accepted += right
        drafted = chosen.draft_tokens
        self.counters.drafted += drafted
        self.counters.accepted += accepted
        self.policy.observe_step(len(chosen.decode), drafted, accepted, seconds, alone=not chosen.windows)
        if self._found or self._drafted:
            self.policy.spend(len(chosen.decode), time.monotonic() - started)


def _right(drafts: Sequence[int], sampled: Sequence[Sampled]) -> tuple[int, bool]:
    """How many of the drafts are what came, and whether the next one is known to be something else."""
    compared = 0
    for draft, got in zip(drafts, sampled, strict=False):
        if draft != got.token:
            return compared, True
        compared += 1
    return compared, False
