"""Drafts of an assistant: a few layers over the target's own KV and hidden states. It remembers nothing.

For a row of P valid entries all queries of a round stand at position P - 1 and see what the target's token
there saw: every entry in full layers, the last `window` of them in sliding ones. Attention knows rows by
their offsets, so there are no masks to build, and a row's drafts are the same alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx

from ingle.contracts.cache import StateLayout
from ingle.contracts.graph import AssistantGraph, ModelGraph, Phase, PhaseGroup
from ingle.contracts.state import StagedChange
from ingle.decoding.sampler import Draw, choose
from ingle.forward.drafting import round_of_drafts
from ingle.forward.packed import reader
from ingle.speculative.source import DraftBatch, DraftRow, Proposal, proposals


class AssistantSource:
    """See `source.DraftSource`."""

    looks_up = False
    wants_hidden = True
    layouts: tuple[StateLayout, ...] = ()

    def __init__(self, graph: AssistantGraph, target: ModelGraph) -> None:
        self._graph, self._target = graph, target
        self._fused = graph.fused(target)

    def step_bytes(self, rows: int) -> int:
        return 0  # a part of what the target's step holds for as many rows of logits

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        """Raises ValueError: a row without a valid entry, or a batch without hidden states."""
        if batch.hidden is None or any(row.known < 2 for row in batch.rows):
            raise ValueError("an assistant drafts behind tokens that the target has computed")
        draws = {r: batch.rows[r].draw() for r, depth in enumerate(depths) if depth}
        native = self._fused is not None and batch.state.tables(0) is not None
        if native and not any(draw.processed() for draw in draws.values()):
            return self._in_one(batch, batch.hidden, depths, draws)
        return self._step_by_step(batch, batch.hidden, depths, draws)

    def _in_one(
        self, batch: DraftBatch, hidden: mx.array, depths: Sequence[int], draws: Mapping[int, Draw]
    ) -> list[Proposal]:
        active = sorted(draws, key=lambda r: -depths[r])  # those who go on stand in front
        members = [[r for r in active if depths[r] > step] for step in range(max(depths))]
        made = round_of_drafts(
            self._fused,
            self._graph.layers,
            batch.state,
            active,
            offsets=[_place(batch.rows[r]) for r in active],
            depths=[depths[r] for r in active],
            choices=[draws[r].ahead(step).choice for step, still in enumerate(members) for r in still],
            tokens=_newest(batch, active),
            hidden=_of(hidden, active),
        )
        return proposals(len(depths), members, made)

    def _step_by_step(
        self, batch: DraftBatch, hidden: mx.array, depths: Sequence[int], draws: Mapping[int, Draw]
    ) -> list[Proposal]:
        active = list(draws)
        tokens, hidden = _newest(batch, active), _of(hidden, active)
        read = self._reader(active, batch)
        drafted: list[mx.array] = []
        members: list[list[int]] = []
        for step in range(max(depths)):
            still = [i for i, r in enumerate(active) if depths[r] > step]
            if len(still) < len(active):
                active = [active[i] for i in still]
                tokens, hidden = tokens[mx.array(still)], hidden[mx.array(still)]
                read = self._reader(active, batch)
            inner = self._graph.begin(self._target.embed(tokens), hidden)
            inner = self._graph.norm(read(inner))
            tokens = choose(self._graph.logits(inner), [draws[r].ahead(step) for r in active])
            drafted.append(tokens)
            members.append(active)
            if step + 1 < max(depths):
                hidden = self._graph.back(inner)
        return proposals(len(depths), members, mx.concatenate(drafted))

    def _reader(self, active: Sequence[int], batch: DraftBatch) -> Callable[[mx.array], mx.array]:
        """The layers, over one token of each active row."""
        lengths = tuple([int(r in active) for r in range(len(batch.rows))])
        group = PhaseGroup(Phase.DECODE, mx.zeros(len(active), mx.int32), batch.state, lengths=lengths)
        return reader(self._graph.layers, group, [_place(row) for row in batch.rows])

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        return StagedChange(lambda: None)

    def drop(self) -> None:
        pass


def _place(row: DraftRow) -> int:
    """Of the last valid entry."""
    return row.known - 2


def _newest(batch: DraftBatch, rows: Sequence[int]) -> mx.array:
    return mx.array([batch.rows[r].tokens(batch.rows[r].known - 1, 1)[0] for r in rows], mx.int32)


def _of(hidden: mx.array, rows: Sequence[int]) -> mx.array:
    return hidden if list(rows) == list(range(hidden.shape[0])) else hidden[mx.array(list(rows))]
