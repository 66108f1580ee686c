"""What a layer's key/value storage promises to attention, to the engine and to donors' readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import mlx.core as mx

KEY_BLOCK = 64
"""Attention kernels walk keys in blocks of this many positions, aligned to position 0. A row's first
column therefore always holds a position that is a multiple of it: the same query gets the same bits
whatever was dropped before."""


class KVView(NamedTuple):
    """Keys and values as attention reads them, right after an append.

    `keys` and `values` are [rows, kv_heads, columns, head_dim]. Rows are left-aligned: column c of
    row r holds position `bases[r] + c`. Columns past a row's last position hold anything. How keys lie
    within a key block is the back end's own affair (`kernels.ops.keys_in_order`).
    """

    keys: mx.array
    values: mx.array
    bases: tuple[int, ...]  # multiple of KEY_BLOCK
    offsets: tuple[int, ...]  # position of the row's first query in this call


@dataclass(frozen=True, slots=True, eq=False)
class DonorView:
    """Read-only KV that another model may attend to. Valid columns of row r: [0, ends[r] - bases[r])."""

    keys: mx.array  # [rows, kv_heads, columns, head_dim]
    values: mx.array
    bases: tuple[int, ...]  # position held by column 0
    ends: tuple[int, ...]  # one past the last position held


class LayerCache(Protocol):
    """One layer's KV for `rows` sequences; a single sequence is a batch of one.

    Mutating methods rebind arrays and never write where a snapshot could see it.
    """

    @property
    def rows(self) -> int: ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens each row has seen: the position its next token takes."""
        ...

    @property
    def state(self) -> list[mx.array]:
        """Arrays to hand to `mx.eval`, so that graphs do not grow from step to step."""
        ...

    @property
    def nbytes(self) -> int: ...

    def append(self, keys: mx.array, values: mx.array) -> KVView:
        """Store [rows, kv_heads, length, head_dim] behind each row's last position."""
        ...

    def reserve(self, length: int) -> KVView:
        """Room for `length` more tokens of each row: the arrays to write to, from `offsets` on."""
        ...

    def publish(self, keys: mx.array, values: mx.array, length: int) -> None:
        """Take the reserved arrays back with `length` more tokens in them. `append` is both in one."""
        ...

    def trim(self, counts: Sequence[int]) -> None:
        """Take back the last `counts[r]` tokens of row r.

        Raises:
            ValueError: more tokens than retention can still give back.
        """
        ...

    def select(self, keep: Sequence[int], joining: Sequence[Self] = ()) -> Self:
        """A new cache: the rows `keep` of this one, then all rows of each of `joining`, in order."""
        ...

    def snapshot(self) -> Self: ...

    def donor(self) -> DonorView: ...
