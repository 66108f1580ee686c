"""The decode batch: which rows share the batched state, changed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import RowState
from ingle.contracts.state import StagedChange
from ingle.engine.rows import Row


class DecodeBatch:
    """Rows whose prompt is computed. Row i of `state` belongs to `rows[i]`; None while there are no rows."""

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = ()
        self.state: RowState | None = None
        self.hidden: mx.array | None = None  # [rows, hidden]: what newest tokens came from; None: not kept

    def stage(self, keep: Sequence[Row], joining: Sequence[Row]) -> StagedChange:
        """The batch of `keep` (members, any order) followed by `joining` (rows with states of their own).

        Everything that can fail happens here: the new state is built and evaluated.
        """
        numbers = [self.rows.index(row) for row in keep]
        rows = (*keep, *joining)
        joined = [row.state for row in joining if row.state is not None]
        assert len(joined) == len(joining), "a joining row brings its state"
        state: RowState | None = None
        if self.state is not None and keep:
            state = self.state.select(numbers, joined)
        elif joined:
            state = joined[0].select(range(joined[0].rows), joined[1:])
        hidden = self._hidden(numbers, joining)
        if state is not None:
            mx.eval(state.arrays, [] if hidden is None else [hidden])

        def publish() -> None:
            self.rows, self.state, self.hidden = rows, state, hidden
            for row in joining:
                row.state = row.hidden = None

        return StagedChange(publish)

    def drop(self) -> None:
        """Forget all members and their state."""
        self.rows, self.state, self.hidden = (), None, None

    def _hidden(self, kept: Sequence[int], joining: Sequence[Row]) -> mx.array | None:
        parts = [] if not kept else [None if self.hidden is None else self.hidden[mx.array(list(kept))]]
        parts += [row.hidden for row in joining]
        known = [part for part in parts if part is not None]
        return mx.concatenate(known) if known and len(known) == len(parts) else None
