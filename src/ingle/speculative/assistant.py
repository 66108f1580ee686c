"""Drafts of an assistant: a few layers over the target's own KV and hidden states. It remembers nothing.

For a row of P valid entries all queries of a round stand at position P - 1 and see what the target's token
there saw: every entry in full layers, the last `window` of them in sliding ones. Attention knows rows by
their offsets, so there are no masks to build, and a row's drafts are the same alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import StateLayout
from ingle.contracts.graph import AssistantGraph, ModelGraph, Phase, PhaseGroup
from ingle.contracts.state import StagedChange
from ingle.decoding.sampler import choose
from ingle.forward.packed import read
from ingle.speculative.source import DraftBatch, DraftRow, Proposal, ahead, proposals


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
        offsets = [row.known - 2 for row in batch.rows]
        active = [r for r, depth in enumerate(depths) if depth]
        tokens = mx.array([batch.rows[r].tokens(batch.rows[r].known - 1, 1)[0] for r in active])
        hidden = batch.hidden if len(active) == len(depths) else batch.hidden[mx.array(active)]
        drafted: list[mx.array] = []
        members: list[list[int]] = []
        draws = {r: batch.rows[r].draw() for r in active}
        for step in range(max(depths)):
            still = [r for r in active if depths[r] > step]
            if len(still) < len(active):
                places = mx.array([active.index(r) for r in still])
                tokens, hidden, active = tokens[places], hidden[places], still
            group = PhaseGroup(Phase.DECODE, tokens, batch.state, lengths=_ones(active, len(depths)))
            inner = self._graph.begin(self._target.embed(tokens), hidden)
            inner = self._graph.norm(read(self._graph.layers, inner, group, offsets))
            tokens = choose(self._graph.logits(inner), [ahead(draws[r], step) for r in active])
            drafted.append(tokens)
            members.append(active)
            if step + 1 < max(depths):
                hidden = self._graph.back(inner)
        mx.eval(drafted)
        return proposals(len(depths), members, drafted)

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        return StagedChange(lambda: None)

    def drop(self) -> None:
        pass


def _ones(active: Sequence[int], rows: int) -> tuple[int, ...]:
    lengths = [0] * rows
    for r in active:
        lengths[r] = 1
    return tuple(lengths)
