"""Drafts of the engine: asks the source, lets the policy decide, and learns from what the target said."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingle.contracts.cache import StateLayout
from ingle.decoding.sampler import Sampled
from ingle.engine.batch import DecodeBatch
from ingle.engine.rows import Row
from ingle.speculative.policy import MAX_DEPTH, MAX_DRAFTS, Policy
from ingle.speculative.source import NOTHING, DraftBatch, DraftSource, Proposal

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpeculationCounters:
    """Only grow; written by the engine thread."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0  # in the source
    failures: int = 0


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

    @property
    def most_drafts(self) -> int:
        """Of one step."""
        return MAX_DRAFTS

    def propose(self, batch: DecodeBatch) -> dict[str, tuple[int, ...]]:
        """Drafts of the next step, by row. A source that fails gives none: nothing is lost but time."""
        self._proposals = {}
        if batch.state is None:
            return {}
        rows = batch.rows
        most = [max(0, min(self._deepest, row.room - 1)) for row in rows]
        started = time.monotonic()
        try:
            if self.source.looks_up:
                proposals = self.source.propose(DraftBatch(rows, batch.state, batch.hidden), most)
                depths = self._depths(rows, proposals, [len(p.tokens) for p in proposals])
            else:
                depths = self._depths(rows, [NOTHING] * len(rows), most)
                if not any(depths):
                    return {}
                proposals = self.source.propose(DraftBatch(rows, batch.state, batch.hidden), depths)
                if any(p.tokens for p in proposals):
                    self.policy.observe_drafting(max(depths), time.monotonic() - started)
        except Exception as error:
            _log.warning("no drafts in this step: %s", error, exc_info=error)
            error.with_traceback(None)
            self.counters.failures += 1
            self.source.drop()
            self.source.stage((), rows).publish()
            return {}
        finally:
            self.counters.seconds += time.monotonic() - started
        self._proposals = dict(zip(rows, proposals, strict=True))
        return {
            row.id: p.tokens[:depth]
            for row, p, depth in zip(rows, proposals, depths, strict=True)
            if depth and p.tokens
        }

    def _depths(self, rows: Sequence[Row], proposals: Sequence[Proposal], most: Sequence[int]) -> list[int]:
        return self.policy.depths([row.rates for row in rows], [p.kind for p in proposals], most)

    def learn(
        self,
        drafts: Mapping[str, tuple[int, ...]],
        sampled: Mapping[str, Sequence[Sampled]],
        seconds: float,
        *,
        alone: bool,
    ) -> None:
        """What became of the drafts; the step took `seconds`, and computed the batch alone or more."""
        used = sum(map(len, drafts.values()))
        self.policy.note(used)
        if alone and self._proposals:
            self.policy.observe_step(len(self._proposals), used, seconds)
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
