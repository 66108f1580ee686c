"""Rows whose KV lies in MLX arrays: the form for GPUs, and for CPUs without the native extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import mlx.core as mx

from ingle.cache.recurrent import Carried
from ingle.cache.rows import RowCache
from ingle.cache.tables import trimmed
from ingle.contracts.cache import KEY_BLOCK, ArrayView, KVBlock, StateLayout


@dataclass(frozen=True, slots=True, eq=False)
class ArrayBlock:
    """See `contracts.cache.KVBlock`: (keys, values) of each layer, [1, kv_heads, KEY_BLOCK, head_dim]."""

    layers: tuple[tuple[mx.array, mx.array], ...]

    @property
    def nbytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


class ArrayState:
    """See `contracts.cache.RowState`."""

    def __init__(self, layout: StateLayout, rows: int, dtype: mx.Dtype) -> None:
        self.layout, self._dtype = layout, dtype
        self.lengths = (0,) * rows
        kinds = [layout.kinds[kind] for kind, _ in layout.places]
        self._caches = [RowCache(rows, k.retention, k.kv_heads, k.head_dim, dtype) for k in kinds]
        self._carried = Carried(layout.recurrent, rows)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def arrays(self) -> list[mx.array]:
        return [*(a for cache in self._caches for a in cache.state), *self._carried.values]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def reserve(self, length: int) -> None:
        """Buffers grow when they are written."""

    def write(self, layer: int, keys: mx.array, values: mx.array) -> ArrayView:
        return self._caches[layer].append(keys, values)

    def advance(self, lengths: Sequence[int], *, revocable: bool = False) -> None:
        self.lengths = tuple([n + new for n, new in zip(self.lengths, lengths, strict=True)])
        if min(lengths) < max(lengths):  # shorter rows were written with something behind their tokens
            for cache in self._caches:
                cache.cut(self.lengths)
        self._carried.publish(lengths, revocable=revocable)

    def tables(self, kind: int) -> Sequence[object] | None:
        return None

    def wrote(self, done: mx.array) -> None:
        raise AssertionError("there are no tables to write to")

    def view(self, layer: int) -> ArrayView:
        return self._caches[layer].view()

    def contents(self, layer: int, row: int) -> tuple[int, mx.array, mx.array]:
        keys, values, bases, ends = self.view(layer)
        held = slice(0, ends[row] - bases[row])
        return bases[row], keys[row, :, held], values[row, :, held]

    def carried(self, number: int) -> mx.array:
        return self._carried.values[number]

    def carry(self, number: int, values: mx.array) -> None:
        self._carried.stage(number, values)

    def trim(self, counts: Sequence[int]) -> None:
        bases = [self._caches[self._first_layer(kind)].bases for kind in range(len(self.layout.kinds))]
        lengths = trimmed(self.layout, self.lengths, counts, bases)
        self._carried.trim(counts)
        self.lengths = lengths
        for cache in self._caches:
            cache.cut(self.lengths)

    def select(self, keep: Sequence[int], joining: Sequence[Self] = ()) -> Self:
        new = type(self)(self.layout, 0, self._dtype)
        new._caches = [
            cache.select(keep, [other._caches[i] for other in joining])
            for i, cache in enumerate(self._caches)
        ]
        new.lengths = (*(self.lengths[r] for r in keep), *(n for other in joining for n in other.lengths))
        new._carried = self._carried.select(keep, [other._carried for other in joining])
        return new

    def snapshot(self) -> Self:
        return self.select(range(self.rows))

    def held(self, row: int, kind: int) -> range:
        cache = self._caches[self._first_layer(kind)]
        return range(cache.bases[row] // KEY_BLOCK, self.lengths[row] // KEY_BLOCK)

    def share(self, row: int, kind: int, number: int) -> ArrayBlock:
        layers: list[tuple[mx.array, mx.array]] = []
        for cache, (own, _) in zip(self._caches, self.layout.places, strict=True):
            if own == kind:
                keys, values, bases, _ = cache.view()
                first = number * KEY_BLOCK - bases[row]
                part = (slice(row, row + 1), slice(None), slice(first, first + KEY_BLOCK))
                layers.append((mx.contiguous(keys[part]), mx.contiguous(values[part])))
        mx.eval(layers)  # copies of their own: a view would keep the whole buffer alive
        return ArrayBlock(tuple(layers))

    def replace(self, row: int, kind: int, number: int, block: KVBlock) -> None:
        """Arrays are never shared: each row keeps its own."""

    def share_carried(self, row: int) -> tuple[mx.array, ...]:
        return tuple(mx.contiguous(value[row : row + 1]) for value in self._carried.values)

    def adopt(self, length: int, blocks: Sequence[Sequence[KVBlock]], carried: Sequence[mx.array]) -> None:
        for cache, (kind, layer) in zip(self._caches, self.layout.places, strict=True):
            parts = [block.layers[layer] for block in cast("Sequence[ArrayBlock]", blocks[kind])]
            keys = mx.concatenate([k for k, _ in parts], axis=2)
            values = mx.concatenate([v for _, v in parts], axis=2)
            cache.fill(length - KEY_BLOCK * len(parts), keys, values)
        self._carried.values = list(carried)
        self.lengths = (length,)

    def _first_layer(self, kind: int) -> int:
        return next(i for i, (own, _) in enumerate(self.layout.places) if own == kind)
