"""Drafts of the engine: asks the source, lets the policy decide, and learns from what the target said."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ingle.contracts.cache import StateLayout
from ingle.decoding.sampler import Sampled
from ingle.engine.batch import DecodeBatch
from ingle.engine.rows import Row
from ingle.engine.scheduler import Plan
from ingle.speculative.policy import MAX_DEPTH, Policy
from ingle.speculative.source import NOTHING, DraftBatch, DraftSource, Proposal

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpeculationCounters:
    """Only grow; written by the engine thread."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0  # in the source
    failures: int = 0


class _Made(NamedTuple):
    """Of each row what may come, and how much of it is verified."""

    proposals: Sequence[Proposal]
    depths: Sequence[int]


class Speculation:
    """Used by the engine thread alone."""

    def __init__(self, source: DraftSource, layout: StateLayout) -> None:
        """`layout` is the target's: drafts that it, or the source, could not take back are not asked for."""
        self.source, self.policy = source, Policy(looks_up=source.looks_up)
        self.counters = SpeculationCounters()
        kinds = [kind for some in (layout, *source.layouts) for kind in some.kinds]
        slacks = [kind.retention.slack for kind in kinds if kind.retention.window is not None]
        self._deepest = min([MAX_DEPTH, *slacks])
        self._proposals: dict[Row, Proposal] = {}  # of this step, those parts too that are not used
        self._decided: tuple[Sequence[Row], list[int]] = (), []  # what the policy said of these rows
        self._rounds = 0  # that its word still holds
        self._on = True  # it said that somebody should draft

    @property
    def wants_hidden(self) -> bool:
        """The next round may need what the step's newest tokens came from. To keep it takes time: it is not
        kept while nothing is drafted, so the first round after that comes a step later."""
        return self.source.wants_hidden and self._on

    def propose(self, batch: DecodeBatch) -> dict[str, tuple[int, ...]]:
        """Drafts of the next step, by row. A source that fails gives none: nothing is lost but time."""
        rows, self._proposals = batch.rows, {}
        if batch.state is None:
            return {}
        started = time.monotonic()
        try:
            given = DraftBatch(rows, batch.state, batch.hidden)
            made = self._look_up(rows, given) if self.source.looks_up else self._draft(rows, given)
        except Exception as error:
            _log.warning("no drafts in this step: %s", error, exc_info=error)
            error.with_traceback(None)
            self.counters.failures += 1
            self.source.drop()
            self.source.stage((), rows).publish()
            return {}
        finally:
            self.counters.seconds += time.monotonic() - started
        self._proposals = dict(zip(rows, made.proposals, strict=False))
        return {
            row.id: p.tokens[:depth]
            for row, p, depth in zip(rows, made.proposals, made.depths, strict=False)
            if depth and p.tokens
        }

    def _look_up(self, rows: Sequence[Row], batch: DraftBatch) -> _Made:
        """Proposals come first, and tell the policy how sure they are."""
        proposals = self.source.propose(batch, [self._most(row) for row in rows])
        return _Made(proposals, self._ask(rows, proposals, [len(p.tokens) for p in proposals]))

    def _draft(self, rows: Sequence[Row], batch: DraftBatch) -> _Made:
        """The policy comes first, now and then: what it weighs changes slowly, and weighing takes time."""
        if self._rounds == 0 or (self._on and self._decided[0] is not rows):
            depths = self._ask(rows, [NOTHING] * len(rows), [self._most(row) for row in rows])
            self._decided, self._rounds, self._on = (rows, depths), self.policy.holds, any(depths)
        self._rounds -= 1
        depths = self._decided[1]
        if not self._on or (self.source.wants_hidden and batch.hidden is None):
            return _Made((), ())
        depths = [min(depth, self._most(row)) for depth, row in zip(depths, rows, strict=True)]
        if not any(depths):
            return _Made((), ())
        started = time.monotonic()
        proposals = self.source.propose(batch, depths)
        if any(p.tokens for p in proposals):
            self.policy.observe_drafting(max(depths), time.monotonic() - started)
        return _Made(proposals, depths)

    def _most(self, row: Row) -> int:
        return max(0, min(self._deepest, row.room - 1))

    def _ask(self, rows: Sequence[Row], proposals: Sequence[Proposal], most: Sequence[int]) -> list[int]:
        return self.policy.depths([row.rates for row in rows], [p.kind for p in proposals], most)

    def learn(
        self,
        chosen: Plan,
        sampled: Mapping[str, Sequence[Sampled]],
        seconds: float,
    ) -> None:
        """What became of the drafts of a step that took `seconds`."""
        drafts = chosen.drafts
        used = sum(map(len, drafts.values()))
        self.policy.note(used)
        if not chosen.windows:
            self.policy.observe_step(len(chosen.decode), used, seconds)
        for row, proposal in self._proposals.items():
            got = [s.token for s in sampled.get(row.id, ())]
            own = drafts.get(row.id, ())
            pairs = list(zip(proposal.tokens, got, strict=False))
            right = next((i for i, (draft, token) in enumerate(pairs) if draft != token), len(pairs))
            self.policy.observe_row(row.rates, proposal.kind, right, wrong=right < len(pairs))
            if own:
                row.drafted += len(own)
                row.accepted += min(right, len(own))
                self.counters.drafted += len(own)
                self.counters.accepted += min(right, len(own))
        self._proposals = {}
