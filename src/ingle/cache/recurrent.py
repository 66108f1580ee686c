"""What recurrent layers carry along: one array for each, changed as a whole by every step."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class Carried:
    """States of recurrent layers, [rows, *shape] each. A step's new values count once it is published."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], rows: int) -> None:
        self.values = [mx.zeros((rows, *shape)) for shape in shapes]
        self._next: dict[int, mx.array] = {}

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values)

    def stage(self, number: int, value: mx.array) -> None:
        self._next[number] = value

    def publish(self) -> None:
        for number, value in self._next.items():
            self.values[number] = value
        self._next = {}

    def select(self, keep: Sequence[int], joining: Sequence[Carried]) -> Carried:
        out = Carried((), 0)
        rows = mx.array(list(keep), mx.int32)
        out.values = [
            mx.concatenate([value[rows], *(other.values[i] for other in joining)])
            for i, value in enumerate(self.values)
        ]
        return out
