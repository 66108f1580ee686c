"""Rows whose KV lies in native blocks: rows share whole blocks, join and leave without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import mlx.core as mx

from ingle.cache.recurrent import Carried
from ingle.contracts.cache import KEY_BLOCK, KVBlock, StateLayout, TableView
from ingle.kernels import native, ops


class TableState:
    """See `contracts.cache.RowState`. Needs the native extension."""

    def __init__(self, layout: StateLayout, rows: int) -> None:
        self.layout = layout
        self.lengths = (0,) * rows
        self._tables = [
            [native.cpu.KVTable(k.layers, k.kv_heads, k.head_dim, False) for _ in range(rows)]
            for k in layout.kinds
        ]
        self._carried = Carried(layout.recurrent, rows)
        self._writes: list[mx.array] = []  # done when the tables hold all that was written

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self._writes, *self._carried.values]

    @property
    def nbytes(self) -> int:
        blocks = sum((t.end - t.first) * t.block_bytes for tables in self._tables for t in tables)
        return blocks + self._carried.nbytes

    def reserve(self, length: int) -> None:
        for kind, tables in zip(self.layout.kinds, self._tables, strict=True):
            for table, start in zip(tables, self.lengths, strict=True):
                table.reserve(kind.retention.first_kept(start), start, start + length)

    def write(self, layer: int, keys: mx.array, values: mx.array) -> TableView:
        kind, number = self.layout.places[layer]
        view = TableView(self._tables[kind], number, self.lengths, self._writes)
        self.wrote(ops.append(view, keys, values))
        return view._replace(after=self._writes)

    def wrote(self, done: mx.array) -> None:
        self._writes = [done]

    def advance(self, lengths: Sequence[int], *, revocable: bool = False) -> None:
        self.lengths = tuple([n + new for n, new in zip(self.lengths, lengths, strict=True)])
        if min(lengths) < max(lengths):  # room was reserved for the longest
            self._cut()
        self._carried.publish(lengths, revocable=revocable)
        for kind, tables in zip(self.layout.kinds, self._tables, strict=True):
            if kind.retention.window is not None:  # what has left the window goes now, not at the next step
                for table, end in zip(tables, self.lengths, strict=True):
                    table.reserve(kind.retention.first_kept(end), end, end)

    def tables(self, kind: int) -> Sequence[object] | None:
        return self._tables[kind]

    def view(self, layer: int) -> TableView:
        kind, number = self.layout.places[layer]
        return TableView(self._tables[kind], number, self.lengths, self._writes)

    def contents(self, layer: int, row: int) -> tuple[int, mx.array, mx.array]:
        kind, number = self.layout.places[layer]
        table = self._tables[kind][row]
        mx.eval(self._writes)
        first = table.first * KEY_BLOCK
        return first, *native.cpu.contents(table, number, first, max(first, self.lengths[row]))

    def carried(self, number: int) -> mx.array:
        return self._carried.values[number]

    def carry(self, number: int, values: mx.array) -> None:
        self._carried.stage(number, values)

    def trim(self, counts: Sequence[int]) -> None:
        bases = [[table.first * KEY_BLOCK for table in tables] for tables in self._tables]
        lengths = trimmed(self.layout, self.lengths, counts, bases)
        self._carried.trim(counts)
        self.lengths = lengths
        self._cut()

    def _cut(self) -> None:
        for tables in self._tables:
            for table, length in zip(tables, self.lengths, strict=True):
                table.cut(length)

    def select(self, keep: Sequence[int], joining: Sequence[Self] = ()) -> Self:
        new = type(self)(self.layout, 0)
        new._tables = [
            [*(tables[r] for r in keep), *(t for other in joining for t in other._tables[kind])]
            for kind, tables in enumerate(self._tables)
        ]
        new.lengths = (*(self.lengths[r] for r in keep), *(n for other in joining for n in other.lengths))
        new._carried = self._carried.select(keep, [other._carried for other in joining])
        new._writes = [*self._writes, *(done for other in joining for done in other._writes)]
        return new

    def snapshot(self) -> Self:
        mx.eval(self._writes)  # a shared block is copied before it is written to
        new = self.select(range(self.rows))
        new._tables = [[table.copy() for table in tables] for tables in self._tables]
        return new

    def held(self, row: int, kind: int) -> range:
        return range(self._tables[kind][row].first, self.lengths[row] // KEY_BLOCK)

    def share(self, row: int, kind: int, number: int) -> KVBlock:
        mx.eval(self._writes)
        return self._tables[kind][row].share(number)

    def replace(self, row: int, kind: int, number: int, block: KVBlock) -> None:
        self._tables[kind][row].replace(number, cast("native.cpu.KVBlock", block))

    def share_carried(self, row: int) -> tuple[mx.array, ...]:
        return tuple(value[row : row + 1] for value in self._carried.values)

    def adopt(self, length: int, blocks: Sequence[Sequence[KVBlock]], carried: Sequence[mx.array]) -> None:
        end = length // KEY_BLOCK
        self._tables = [
            [tables[0].adopt(end - len(given), cast("Sequence[native.cpu.KVBlock]", given))]
            for tables, given in zip(self._tables, blocks, strict=True)
        ]
        self._carried.values = list(carried)
        self.lengths = (length,)


def trimmed(
    layout: StateLayout, lengths: Sequence[int], counts: Sequence[int], bases: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The lengths after `counts` tokens of each row are taken back; `bases[kind][row]` is held first.

    Raises:
        ValueError: see `contracts.cache.RowState.trim`.
    """
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        left = length - count
        for kind, of_rows in zip(layout.kinds, bases, strict=True):
            base, window = of_rows[row], kind.retention.window or 0
            if count < 0 or left < 0 or (base > 0 and base > left - window + 1):
                raise ValueError(
                    f"cannot take back {count} of {length} tokens of row {row}: "
                    f"positions before {base} are gone"
                )
    return tuple(n - c for n, c in zip(lengths, counts, strict=True))
