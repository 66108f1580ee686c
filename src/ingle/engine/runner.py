"""Turn a plan into one packed forward and sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.cache import RowState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup, SoftTokens
from ingle.decoding.sampler import Sampled, sample
from ingle.engine.batch import DecodeBatch
from ingle.engine.features import FeatureCache
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

    def __init__(self, graph: ModelGraph, features: FeatureCache, *, row_invariant: bool) -> None:
        self._graph, self._features = graph, features
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
            ends_prompt = window.length == row.pending
            if ends_prompt:
                ready.append(len(groups))
                draws.append(row)
            groups.append(self._window(row, row.state, window.length, wanted=1 if ends_prompt else 0))
            computed[row.id] = window.length
        hidden = forward(self._graph, groups, row_invariant=self._row_invariant)
        sampled: dict[str, Sampled] = {}
        if ready:
            last = mx.concatenate([hidden[group][:, -1] for group in ready])
            results = sample(self._graph.logits(last), [row.draw() for row in draws])
            sampled = {row.id: result for row, result in zip(draws, results, strict=True)}
        mx.eval(hidden, [group.state.arrays for group in groups])
        return StepResult(computed, sampled)

    def _window(self, row: Row, state: RowState, length: int, *, wanted: int) -> PhaseGroup:
        """The next `length` tokens of a row, with the soft tokens among them."""
        start, end = row.computed, row.computed + length
        soft: list[SoftTokens] = []
        ends: list[int] | None = None
        for span in row.request.content:
            first, last = max(span.start, start), min(span.end, end)
            if first >= last:
                continue
            if span.block is not None:
                features = self._features.get(span.block)[first - span.start : last - span.start]
                soft.append(SoftTokens(first - start, features))
            if (span.start, span.end) in row.blocks:
                ends = ends or list(range(start + 1, end + 1))
                ends[first - start : last - start] = [last] * (last - first)
        ids = mx.array([row.tokens(start, length)], mx.int32)
        return PhaseGroup(
            Phase.WINDOW,
            ids,
            state,
            soft=soft,
            ends=None if ends is None else mx.array([ends], mx.int32),
            wanted=wanted,
        )
