"""Drafts of a smaller model with the same vocabulary, for all rows at once. It keeps a state of its own.

Of each row it has computed the first tokens; what is missing is fed at the beginning of a round, in one
forward with rows of different lengths: the newest token, the last draft if all were accepted (it was never
fed), or more where the row sat out some rounds. A new row catches up in windows, while the others go on.
What a round fed beyond what the row then said is taken back before the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import RowState, StateLayout
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup
from ingle.contracts.state import StagedChange
from ingle.decoding.sampler import choose
from ingle.forward.packed import forward
from ingle.speculative.source import NOTHING, DraftBatch, DraftRow, Proposal, proposals

_FEED = 32  # tokens of a row that a round may feed before it drafts; more is caught up in windows
_WINDOW = 256  # tokens of a window


class DraftModelSource:
    """See `source.DraftSource`."""

    looks_up = False
    wants_hidden = False

    def __init__(self, graph: ModelGraph, *, row_invariant: bool) -> None:
        self._graph, self._row_invariant = graph, row_invariant
        self.layouts: tuple[StateLayout, ...] = (graph.layout,)
        self._rows: tuple[DraftRow, ...] = ()  # row i of the state is _rows[i]
        self._state: RowState | None = None
        self._fed: dict[DraftRow, list[int]] = {}  # drafts that the state holds and the row may not have said
        self._new: dict[DraftRow, RowState | None] = {}  # rows that catch up, the oldest first

    def step_bytes(self, rows: int) -> int:
        return self._graph.step_bytes(max(_WINDOW, _FEED * rows), rows)

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        self._take_back()
        self._catch_up()
        wanted = dict(zip(batch.rows, depths, strict=True))
        state = self._state
        drafting = [wanted[row] if self._missing(i) <= _FEED else 0 for i, row in enumerate(self._rows)]
        if state is None or not any(drafting):
            return [NOTHING] * len(depths)
        drafted: list[mx.array] = []
        members: list[list[int]] = []
        draws = [row.draw() for row in self._rows]
        fed = [
            row.tokens(state.lengths[i], self._missing(i)) if drafting[i] else []
            for i, row in enumerate(self._rows)
        ]
        tokens = mx.array([token for line in fed for token in line], mx.int32)
        lengths = [len(line) for line in fed]
        active = [i for i, depth in enumerate(drafting) if depth]
        for step in range(max(drafting)):
            if step:
                still = [i for i in active if drafting[i] > step]
                if len(still) < len(active):
                    tokens, active = tokens[mx.array([active.index(i) for i in still])], still
                lengths = [int(drafting[i] > step) for i in range(len(drafting))]
            group = PhaseGroup(Phase.VERIFY, tokens, state, lengths=tuple(lengths))
            (hidden,) = forward(self._graph, [group], row_invariant=self._row_invariant)
            if step == 0:
                ends = [sum(lengths[: i + 1]) - 1 for i in active]
                hidden = hidden[mx.array(ends)]
            tokens = choose(self._graph.logits(hidden), [draws[i].ahead(step) for i in active])
            drafted.append(tokens)
            members.append(active)
        made = proposals(len(self._rows), members, mx.concatenate(drafted))
        mx.eval(state.arrays)
        # The last draft of a row was chosen and not fed.
        self._fed = {
            row: list(p.tokens[: depth - 1]) for row, p, depth in zip(self._rows, made, drafting, strict=True)
        }
        by_row = dict(zip(self._rows, made, strict=True))
        return [by_row.get(row, NOTHING) for row in batch.rows]

    def stage(self, keep: Sequence[DraftRow], joining: Sequence[DraftRow]) -> StagedChange:
        self._take_back()
        staying = set(keep)
        kept = [i for i, row in enumerate(self._rows) if row in staying]
        rows = tuple([self._rows[i] for i in kept])
        state = self._state.select(kept) if self._state is not None and kept else None
        if state is not None:
            mx.eval(state.arrays)
        new = {row: s for row, s in self._new.items() if row in staying} | dict.fromkeys(joining)

        def publish() -> None:
            self._rows, self._state, self._new = rows, state, new

        return StagedChange(publish)

    def drop(self) -> None:
        self._rows, self._state, self._new, self._fed = (), None, {}, {}

    def _missing(self, i: int) -> int:
        assert self._state is not None
        return self._rows[i].known - self._state.lengths[i]

    def _take_back(self) -> None:
        """What the last round fed and the rows did not say."""
        fed, self._fed = self._fed, {}
        if self._state is None or not fed:
            return
        counts: list[int] = []
        for row, length in zip(self._rows, self._state.lengths, strict=True):
            drafts = fed.get(row, [])
            said = row.tokens(length - len(drafts), len(drafts))
            pairs = zip(drafts, said, strict=False)
            right = next((i for i, (draft, token) in enumerate(pairs) if draft != token), len(said))
            counts.append(len(drafts) - right)
        self._state.trim(counts)

    def _catch_up(self) -> None:
        """One window of the first row that is behind; a row that has caught up joins the others."""
        for i, row in enumerate(self._rows):
            if self._missing(i) > _FEED:
                assert self._state is not None
                self._new[row] = self._state.select([i])
                kept = [n for n in range(len(self._rows)) if n != i]
                self._state = self._state.select(kept) if kept else None
                self._rows = tuple([self._rows[n] for n in kept])
                break
        if not self._new:
            return
        row, state = next(iter(self._new.items()))
        if state is None:
            state = self._new[row] = self._graph.make_state(1)
        done = state.lengths[0]
        length = min(_WINDOW, row.known - 1 - done)
        if length > 0:
            ids = mx.array([row.tokens(done, length)], mx.int32)
            group = PhaseGroup(Phase.WINDOW, ids, state, wanted=0)
            hidden = forward(self._graph, [group], row_invariant=self._row_invariant)
            mx.eval(hidden, state.arrays)
        if state.lengths[0] == row.known - 1:
            del self._new[row]
            everybody = range(len(self._rows))
            self._state = state if self._state is None else self._state.select(everybody, [state])
            self._rows = (*self._rows, row)
