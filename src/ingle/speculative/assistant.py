"""Drafts of an assistant: a few layers over the target's own KV and hidden states. It remembers nothing.

For a row of P valid entries all queries of a round stand at position P - 1 and see what the target's token
there saw: every entry in full layers, the last `window` of them in sliding ones. Attention knows rows by
their offsets, so there are no masks to build, and a row's drafts are the same alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from ingle.contracts.cache import StateLayout
from ingle.contracts.graph import AssistantGraph, ModelGraph, Phase, PhaseGroup
from ingle.contracts.state import StagedChange
from ingle.decoding.sampler import choose
from ingle.forward.packed import reader
from ingle.speculative.source import DraftBatch, DraftRow, Proposal, proposals


class AssistantSource:
    """See `source.DraftSource`."""

    name = "assistant"
    looks_up = False
    wants_hidden = True
    layouts: tuple[StateLayout, ...] = ()

    def __init__(self, graph: AssistantGraph, target: ModelGraph) -> None:
        self._graph, self._target = graph, target

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        """Raises ValueError: a row without a valid entry, or a batch without hidden states."""
        if batch.hidden is None or any(row.known < 2 for row in batch.rows):
            raise ValueError("an assistant drafts behind tokens that the target has computed")
        rows = batch.rows
        offsets = [row.known - 2 for row in rows]
        active = [r for r, depth in enumerate(depths) if depth]
        draws = [rows[r].draw() for r in active]
        tokens = mx.array([rows[r].tokens(rows[r].known - 1, 1)[0] for r in active], mx.int32)
        hidden = batch.hidden if len(active) == len(rows) else batch.hidden[mx.array(active)]
        read = self._reader(active, batch, offsets)
        drafted: list[mx.array] = []
        members: list[list[int]] = []
        for step in range(max(depths)):
            still = [i for i, r in enumerate(active) if depths[r] > step]
            if len(still) < len(active):
                active, draws = [active[i] for i in still], [draws[i] for i in still]
                tokens, hidden = tokens[mx.array(still)], hidden[mx.array(still)]
                read = self._reader(active, batch, offsets)
            inner = self._graph.begin(self._target.embed(tokens), hidden)
            inner = self._graph.norm(read(inner))
            tokens = choose(self._graph.logits(inner), [draw.ahead(step) for draw in draws])
            drafted.append(tokens)
            members.append(active)
            if step + 1 < max(depths):
                hidden = self._graph.back(inner)
        return proposals(len(rows), members, drafted)

    def _reader(
        self, active: Sequence[int], batch: DraftBatch, offsets: Sequence[int]
    ) -> Callable[[mx.array], mx.array]:
        """The layers, over one token of each active row."""
        lengths = [0] * len(offsets)
        for r in active:
            lengths[r] = 1
        group = PhaseGroup(Phase.DECODE, mx.zeros(len(active), mx.int32), batch.state, lengths=tuple(lengths))
        return reader(self._graph.layers, group, offsets)

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        return StagedChange(lambda: None)

    def drop(self) -> None:
        pass
