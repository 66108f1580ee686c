"""What recurrent layers carry along: one array for each, changed as a whole by every step.

Nothing carried can be computed backwards. What may be taken back is kept: the values behind each token since
the last time that rows were trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class Carried:
    """States of recurrent layers, [rows, *shape] each. A step's new values count once it is published."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], rows: int) -> None:
        self.values = [mx.zeros((rows, *shape)) for shape in shapes]
        self._next: dict[int, mx.array] = {}
        self._past: list[mx.array] = []  # of each layer [rows, places, *shape]
        self._places: list[list[int]] = []  # of each row: where its values are, in order, now's last

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in (*self.values, *self._past))

    def stage(self, number: int, values: mx.array) -> None:
        """[rows, tokens, *shape]"""
        self._next[number] = values

    def publish(self, lengths: Sequence[int], *, revocable: bool) -> None:
        """Row r goes on by `lengths[r]` tokens."""
        if not self._next:
            return
        staged = [self._next[number] for number in range(len(self.values))]
        self._next = {}
        if not revocable:
            self.settle()
            self.values = [values[:, -1] for values in staged]
            return
        if not self._past:
            self._past = [value[:, None] for value in self.values]
            self._places = [[0] for _ in lengths]
        first = self._past[0].shape[1]
        self._past = [mx.concatenate([*pair], axis=1) for pair in zip(self._past, staged, strict=True)]
        for places, length in zip(self._places, lengths, strict=True):
            places += range(first, first + length)
        self._show()

    def trim(self, counts: Sequence[int]) -> None:
        """Raises ValueError: more tokens of a row than there are values behind."""
        if not self.values:
            return
        for row, count in enumerate(counts):
            known = len(self._places[row]) - 1 if self._past else 0
            if count > known:
                raise ValueError(
                    f"cannot take back {count} tokens of row {row}: of its recurrent layers {known} are known"
                )
        if self._past:
            self._places = [places[: len(places) - n] for places, n in zip(self._places, counts, strict=True)]
            self._show()
            self.settle()

    def settle(self) -> None:
        """Nothing up to here is taken back any more."""
        self._past, self._places = [], []

    def select(self, keep: Sequence[int], joining: Sequence[Carried]) -> Carried:
        out = Carried((), 0)
        rows = mx.array(list(keep), mx.int32)
        out.values = [
            mx.concatenate([value[rows], *(other.values[i] for other in joining)])
            for i, value in enumerate(self.values)
        ]
        return out

    def _show(self) -> None:
        now = mx.array([places[-1] for places in self._places])
        rows = mx.arange(now.size)
        self.values = [past[rows, now] for past in self._past]
