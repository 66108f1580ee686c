"""Turn a plan into one packed forward and sampled tokens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ingle.contracts.cache import RowState
from ingle.contracts.grammar import GrammarFailed
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup, SoftTokens
from ingle.decoding.sampler import Draw, Sampled, sample
from ingle.engine.batch import DecodeBatch
from ingle.engine.features import FeatureCache
from ingle.engine.rows import Row
from ingle.engine.scheduler import Plan
from ingle.forward.packed import forward


@dataclass(frozen=True, slots=True)
class StepResult:
    """`computed` counts the tokens each row had computed and keeps; `sampled` holds rows that got tokens.

    Rows in `refused` got none: their grammar went over a limit, with this message.
    """

    computed: Mapping[str, int]
    sampled: Mapping[str, Sequence[Sampled]]
    refused: Mapping[str, str]


@dataclass(slots=True)
class GrammarCounters:
    """Only grow; written by the engine thread."""

    masks: int = 0
    seconds: float = 0.0


class Runner:
    """Runs steps on one graph. Everything lazy is evaluated before `run` returns."""

    def __init__(self, graph: ModelGraph, features: FeatureCache, *, row_invariant: bool) -> None:
        self._graph, self._features = graph, features
        self._row_invariant = row_invariant
        self.grammars = GrammarCounters()

    def make_state(self, rows: int) -> RowState:
        return self._graph.make_state(rows)

    def run(
        self, plan: Plan, rows: Mapping[str, Row], batch: DecodeBatch, *, keep_hidden: bool = False
    ) -> StepResult:
        """One step. On any exception the KV of every planned row is in an unknown state.

        Only rows whose last known token was computed get a sample: a window that ends inside its
        prompt yields nothing yet. With `keep_hidden` rows and batch keep the hidden states that their newest
        tokens came from.
        """
        groups: list[PhaseGroup] = []
        ready: list[int] = []  # groups whose rows get a token
        draws: list[Draw] = []  # of those rows, in the order of their logits
        drawn: list[Row] = []
        computed: dict[str, int] = {}
        refused: dict[str, str] = {}
        pooling: list[tuple[int, Row]] = []  # groups whose hidden states are pooled
        if plan.decode:
            members = batch.rows
            drawn += members
            assert {row.id for row in members} == set(plan.decode), "a step decodes the whole batch"
            assert batch.state is not None
            ready.append(len(groups))
            draws += [self._draw(row, plan.drafts.get(row.id, ()), refused) for row in members]
            groups.append(_next_tokens(members, batch.state, plan.drafts))
        for window in plan.windows:
            row = rows[window.id]
            if row.state is None:
                row.state = self.make_state(1)
            ends_prompt = window.length == row.pending
            wanted = 1 if ends_prompt else 0
            if row.request.pooling is not None:
                pooling.append((len(groups), row))
                wanted = window.length if row.request.pooling == "mean" else wanted
            elif ends_prompt:
                ready.append(len(groups))
                draws.append(self._draw(row, (), refused))
                drawn.append(row)
            groups.append(self._window(row, row.state, window.length, wanted=wanted))
            computed[row.id] = window.length
        hidden = forward(self._graph, groups, row_invariant=self._row_invariant)
        sampled: dict[str, Sequence[Sampled]] = {}
        lines: mx.array | None = None  # hidden states that logits are made of
        if ready:
            lines = _join([hidden[group].reshape(-1, hidden[group].shape[-1]) for group in ready])
            results = sample(self._graph.logits(lines), draws)
            sampled = {row.id: result for row, result in zip(drawn, results, strict=True)}
        if plan.decode:
            assert batch.state is not None
            computed.update((row.id, len(sampled[row.id])) for row in batch.rows)
            if plan.drafts:
                lengths = plan.lengths
                batch.state.trim([lengths[row.id] - computed[row.id] for row in batch.rows])
        newest: list[mx.array] = []
        if keep_hidden and lines is not None:
            newest = [_newest(lines, draws, [len(sampled[row.id]) for row in drawn])]
        if plan.decode:
            batch.hidden = newest[0][: len(batch.rows)] if newest else None
        for number, row in enumerate(drawn):
            if number >= len(plan.decode):
                row.hidden = newest[0][number : number + 1] if newest else None
        mx.eval(newest, hidden, [group.state.arrays for group in groups])
        for group, row in pooling:
            if hidden[group].shape[1]:
                row.pool(np.array(hidden[group][0].astype(mx.float32)))
        for id in refused:
            del sampled[id]
        return StepResult(computed, sampled, refused)

    def _draw(self, row: Row, drafts: tuple[int, ...], refused: dict[str, str]) -> Draw:
        if row.grammar is None:
            return row.draw(drafts)
        started = time.monotonic()
        try:
            masks = row.grammar.masks(drafts)
        except GrammarFailed as error:
            refused[row.id] = str(error)
            masks = []
        self.grammars.masks += len(masks)
        self.grammars.seconds += time.monotonic() - started
        return row.draw(drafts, tuple(masks))

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


def _next_tokens(rows: Sequence[Row], state: RowState, drafts: Mapping[str, Sequence[int]]) -> PhaseGroup:
    """Each row's pending token, and its drafts behind it."""
    if not drafts:
        return PhaseGroup(
            Phase.DECODE, mx.array([row.tokens(row.computed, 1) for row in rows], mx.int32), state
        )
    tokens = [[*row.tokens(row.computed, 1), *drafts.get(row.id, ())] for row in rows]
    ids = mx.array([token for line in tokens for token in line], mx.int32)
    return PhaseGroup(Phase.VERIFY, ids, state, lengths=tuple(map(len, tokens)))


def _newest(lines: mx.array, draws: Sequence[Draw], counts: Sequence[int]) -> mx.array:
    """Of each draw the line that the last of its `counts[i]` tokens came from: [draws, hidden]."""
    if len(draws) == lines.shape[0]:
        return lines
    starts = itertools.accumulate((1 + len(draw.drafts) for draw in draws), initial=0)
    return lines[mx.array([start + n - 1 for start, n in zip(starts, counts, strict=False)])]


def _join(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)
