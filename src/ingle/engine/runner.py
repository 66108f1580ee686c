"""Turn a plan into one packed forward and sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.cache import RowState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup
from ingle.decoding.sampler import Sampled, sample
from ingle.engine.batch import DecodeBatch
from ingle.engine.rows import Row
from ingle.engine.scheduler import Plan
from ingle.forward.packed import forward


@dataclass(frozen=True, slots=True)
class StepResult:
    """`computed` counts the tokens each row had computed; `sampled` holds rows that got a token."""

    computed: Mapping[str, int]
    sampled: Mapping[str, Sampled]


class Runner:
    """Runs steps on one graph. Everything lazy is evaluated before `run` returns."""

    def __init__(self, graph: ModelGraph, *, row_invariant: bool) -> None:
        self._graph = graph
        self._row_invariant = row_invariant

    def make_state(self, rows: int) -> RowState:
        return self._graph.make_state(rows)

    def run(self, plan: Plan, rows: Mapping[str, Row], batch: DecodeBatch) -> StepResult:
        """One step. On any exception the KV of every planned row is in an unknown state.

        Only rows whose last known token was computed get a sample: a window that ends inside its
        prompt yields nothing yet.
        """
        groups: list[PhaseGroup] = []
        ready: list[int] = []  # groups whose rows get a token
        draws: list[Row] = []  # those rows, in the order of their logits
        computed: dict[str, int] = {}
        if plan.decode:
            members = batch.rows
            assert {row.id for row in members} == set(plan.decode), "a step decodes the whole batch"
            ids = mx.array([row.tokens(row.computed, 1) for row in members], mx.int32)
            ready.append(len(groups))
            draws += members
            assert batch.state is not None
            groups.append(PhaseGroup(Phase.DECODE, ids, batch.state))
            computed.update((row.id, 1) for row in members)
        for window in plan.windows:
            row = rows[window.id]
            if row.state is None:
                row.state = self.make_state(1)
            ids = mx.array([row.tokens(row.computed, window.length)], mx.int32)
            if window.length == row.pending:
                ready.append(len(groups))
                draws.append(row)
            groups.append(PhaseGroup(Phase.WINDOW, ids, row.state))
            computed[row.id] = window.length
        hidden = forward(self._graph, groups, row_invariant=self._row_invariant)
        sampled: dict[str, Sampled] = {}
        if ready:
            last = mx.concatenate([hidden[group][:, -1] for group in ready])
            results = sample(self._graph.logits(last), [row.draw() for row in draws])
            sampled = {row.id: result for row, result in zip(draws, results, strict=True)}
        mx.eval(hidden, [group.state.arrays for group in groups])
        return StepResult(computed, sampled)
