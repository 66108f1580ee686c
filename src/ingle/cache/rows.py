"""KV of one layer in arrays, for back ends without native blocks: left-aligned rows, any retention.

Column c of row r holds position `base[r] + c`. Lengths and bases are host integers: no device
value is ever read back to know where a row stands. With a sliding window, dropped positions leave
when the buffer is full, all rows at once, so the copy is paid once in many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from ingle.contracts.cache import ArrayView, Retention
from ingle.kernels import ops

_GROWTH = 256  # columns added at a time: few reallocations, and slice updates can reuse the buffer


class RowCache:
    """Buffers are [rows, kv_heads, columns, head_dim] of `dtype`.

    Methods rebind arrays and never write where a copy of this cache could see it.
    """

    def __init__(
        self, rows: int, retention: Retention, kv_heads: int, head_dim: int, dtype: mx.Dtype
    ) -> None:
        self._retention = retention
        self._kv_heads, self._head_dim, self._dtype = kv_heads, head_dim, dtype
        self._keys: mx.array | None = None
        self._values: mx.array | None = None
        self._bases = (0,) * rows
        self._lengths = (0,) * rows
        self._free = 0  # columns behind the row that has fewest

    @property
    def rows(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._lengths

    @property
    def bases(self) -> tuple[int, ...]:
        return self._bases

    @property
    def columns(self) -> int:
        return 0 if self._keys is None else self._keys.shape[2]

    @property
    def state(self) -> list[mx.array]:
        return [a for a in (self._keys, self._values) if a is not None]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.state)

    def append(self, keys: mx.array, values: mx.array) -> ArrayView:
        """Store [rows, kv_heads, length, head_dim] behind each row's last position."""
        if keys.shape[0] != self.rows:
            raise ValueError(f"append of {keys.shape[0]} rows to a cache of {self.rows}")
        length = keys.shape[2]
        if length > self._free:
            self._make_room(length)
        assert self._keys is not None and self._values is not None
        starts = [n - b for n, b in zip(self._lengths, self._bases, strict=True)]
        self._keys = ops.write(self._keys, keys, starts)
        self._values = ops.write(self._values, values, starts)
        offsets = self._lengths
        self._lengths = tuple([n + length for n in offsets])
        self._free -= length
        return ArrayView(self._keys, self._values, self._bases, offsets)

    def view(self) -> ArrayView:
        if self._keys is None or self._values is None:
            raise ValueError("an empty cache has nothing to lend")
        return ArrayView(self._keys, self._values, self._bases, self._lengths)

    def fill(self, base: int, keys: mx.array, values: mx.array) -> None:
        """Make this fresh cache of one row hold [1, kv_heads, length, head_dim] from position `base` on."""
        self._keys, self._values = keys, values
        self._bases, self._lengths, self._free = (base,), (base + keys.shape[2],), 0

    def cut(self, lengths: Sequence[int]) -> None:
        """Forget what stands at or behind `lengths[r]` of row r."""
        self._lengths = tuple(lengths)
        self._free = self.columns - self._needed(0)

    def select(self, keep: Sequence[int], joining: Sequence[Self] = ()) -> Self:
        """A new cache: the rows `keep` of this one, then all rows of each of `joining`, in order."""
        kept = list(keep)
        parts: list[tuple[Self, list[int] | None]] = []
        if kept:
            parts.append((self, None if kept == list(range(self.rows)) else kept))
        parts += [(cache, None) for cache in joining if cache.rows]
        new = type(self)(0, self._retention, self._kv_heads, self._head_dim, self._dtype)
        new._bases = tuple(self._bases[r] for r in kept) + tuple(b for c in joining for b in c._bases)
        new._lengths = tuple(self._lengths[r] for r in kept) + tuple(n for c in joining for n in c._lengths)
        columns = max((cache.columns for cache, _ in parts), default=0)
        if columns:
            if any(cache.columns == 0 for cache, _ in parts):
                raise ValueError("a row joins a batch only after its first token")
            new._keys = _stack([_rows(c._keys, r, columns) for c, r in parts])
            new._values = _stack([_rows(c._values, r, columns) for c, r in parts])
            new._free = columns - new._needed(0)
        return new

    def _make_room(self, new: int) -> None:
        """Drop what retention no longer needs, then grow, so that `new` more columns fit every row."""
        if self._keys is not None:
            bases = tuple(
                max(base, self._retention.first_kept(length))
                for base, length in zip(self._bases, self._lengths, strict=True)
            )
            shifts = [b - a for a, b in zip(self._bases, bases, strict=True)]
            if any(shifts):
                self._bases = bases
                index = mx.minimum(
                    mx.arange(self.columns)[None] + mx.array(shifts)[:, None], self.columns - 1
                )
                index = index[:, None, :, None]
                assert self._values is not None
                self._keys = mx.take_along_axis(self._keys, index, axis=2)
                self._values = mx.take_along_axis(self._values, index, axis=2)
        needed = self._needed(new)
        if needed > self.columns:
            missing = -(-needed // _GROWTH) * _GROWTH - self.columns
            shape = (self.rows, self._kv_heads, missing, self._head_dim)
            self._keys = _grow(self._keys, mx.zeros(shape, self._dtype))
            self._values = _grow(self._values, mx.zeros(shape, self._dtype))
        self._free = self.columns - self._needed(0)

    def _needed(self, new: int) -> int:
        return max(n - b for n, b in zip(self._lengths, self._bases, strict=True)) + new


def _grow(buffer: mx.array | None, fresh: mx.array) -> mx.array:
    return fresh if buffer is None else mx.concatenate([buffer, fresh], axis=2)


def _rows(buffer: mx.array | None, rows: list[int] | None, columns: int) -> mx.array:
    assert buffer is not None
    if rows is not None:
        buffer = mx.take(buffer, mx.array(rows), axis=0)
    return mx.pad(buffer, [(0, 0), (0, 0), (0, columns - buffer.shape[2]), (0, 0)])


def _stack(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
