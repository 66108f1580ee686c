"""What rows remember between steps, and what that promises to attention and to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

import mlx.core as mx

KEY_BLOCK = 64
"""Positions in a block of KV. Attention kernels walk keys in such blocks, aligned to position 0: a row's
first column always holds a position that is a multiple of it, so the same query gets the same bits
whatever was dropped before. Rows that begin with the same tokens share whole blocks."""


@dataclass(frozen=True, slots=True)
class Retention:
    """`window` None keeps everything. Otherwise a query sees `window` positions, its own included.

    `slack` more positions stay behind the window, so that up to `slack` tokens can be taken back
    (rejected drafts) and the window before them is still whole.
    """

    window: int | None = None
    slack: int = 0

    def first_kept(self, length: int) -> int:
        """First position that a row of `length` tokens must still hold, rounded down to KEY_BLOCK."""
        if self.window is None:
            return 0
        needed = max(0, length - self.slack - self.window + 1)
        return needed // KEY_BLOCK * KEY_BLOCK


@dataclass(frozen=True, slots=True)
class KVKind:
    """Layers that keep their KV alike."""

    layers: int
    kv_heads: int
    head_dim: int
    retention: Retention


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What one row of a graph remembers."""

    kinds: tuple[KVKind, ...]
    places: tuple[tuple[int, int], ...]  # (kind, layer within it) of each layer that owns KV
    recurrent: tuple[tuple[int, ...], ...] = ()  # shape of what each recurrent layer carries along
    itemsize: int = 4  # bytes of one element of a key

    @classmethod
    def of(
        cls, layers: Sequence[KVKind], recurrent: tuple[tuple[int, ...], ...] = (), itemsize: int = 4
    ) -> StateLayout:
        """From a kind for each layer alone (`layers` 1), in order; alike ones become one kind."""
        kinds = list(dict.fromkeys(layers))
        counts = [0] * len(kinds)
        places: list[tuple[int, int]] = []
        for layer in layers:
            kind = kinds.index(layer)
            places.append((kind, counts[kind]))
            counts[kind] += 1
        return cls(
            tuple(KVKind(n, k.kv_heads, k.head_dim, k.retention) for k, n in zip(kinds, counts, strict=True)),
            tuple(places),
            recurrent,
            itemsize,
        )

    def block_bytes(self, kind: int) -> int:
        """Of KEY_BLOCK positions of one row, keys and values of all layers of a kind."""
        k = self.kinds[kind]
        return 2 * k.layers * k.kv_heads * k.head_dim * KEY_BLOCK * self.itemsize


class ArrayView(NamedTuple):
    """Keys and values in arrays [rows, kv_heads, columns, head_dim].

    Rows are left-aligned: column c of row r holds position `bases[r] + c`. Columns past a row's last
    position hold anything.
    """

    keys: mx.array
    values: mx.array
    bases: tuple[int, ...]  # multiple of KEY_BLOCK
    offsets: tuple[int, ...]  # position of the row's first query in this call


class TableView(NamedTuple):
    """Keys and values of one layer in native tables, one for each row (`kernels._cpu.KVTable`)."""

    tables: Sequence[object]
    layer: int  # of the tables' layers
    offsets: tuple[int, ...]
    after: Sequence[mx.array]  # done when everything to be read is written


KVView: TypeAlias = ArrayView | TableView
"""What attention reads, right after a write."""


class KVBlock(Protocol):
    """KEY_BLOCK positions of one row, all layers of one kind. Never changes."""

    @property
    def nbytes(self) -> int: ...


class RowState(Protocol):
    """Everything that some rows remember; a single sequence is a batch of one.

    A step reserves room, writes layer by layer, and advances. Until it advances, nothing it wrote counts.
    """

    @property
    def layout(self) -> StateLayout: ...

    @property
    def rows(self) -> int: ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens each row has computed: the position its next token takes."""
        ...

    @property
    def arrays(self) -> list[mx.array]:
        """What to hand to `mx.eval`, so that graphs do not grow from step to step. When it is evaluated,
        so is everything written."""
        ...

    @property
    def nbytes(self) -> int:
        """Of KV and carried states; blocks that other rows share count in full."""
        ...

    def reserve(self, length: int) -> None:
        """Room for `length` more tokens of each row."""
        ...

    def write(self, layer: int, keys: mx.array, values: mx.array) -> KVView:
        """Keep [rows, kv_heads, length, head_dim] of the reserved tokens, of the layer of that KV number."""
        ...

    def advance(self, lengths: Sequence[int], *, revocable: bool = False) -> None:
        """All layers have written: of row r, `lengths[r]` of the reserved tokens count.

        `revocable` tokens may be taken back from recurrent layers too.
        """
        ...

    def tables(self, kind: int) -> Sequence[object] | None:
        """The rows' native tables of a kind, where KV lies in such."""
        ...

    def wrote(self, done: mx.array) -> None:
        """A native operation has written to `tables`, once `done` is evaluated."""
        ...

    def view(self, layer: int) -> KVView:
        """A donor: KV that other layers or another model may attend to, at positions before `offsets`."""
        ...

    def contents(self, layer: int, row: int) -> tuple[int, mx.array, mx.array]:
        """(first position held, keys, values), both [kv_heads, positions, head_dim], in order."""
        ...

    def carried(self, number: int) -> mx.array:
        """What recurrent layer `number` carries along: float32 [rows, *shape], zeros at first."""
        ...

    def carry(self, number: int, values: mx.array) -> None:
        """What recurrent layer `number` carries behind each of the step's last tokens,
        [rows, tokens, *shape]: of the last one, or of all where they are revocable. Counts when the step
        advances.
        """
        ...

    def trim(self, counts: Sequence[int]) -> None:
        """Take back the last `counts[r]` tokens of row r.

        Raises:
            ValueError: more tokens than retention can still give back, or more than were revocable since
                the last `trim` where there are recurrent layers.
        """
        ...

    def select(self, keep: Sequence[int], joining: Sequence[Self] = ()) -> Self:
        """The rows `keep` of this state, then all rows of each of `joining`, in order.

        The result takes the place of its sources: only one of them may go on.
        """
        ...

    def snapshot(self) -> Self:
        """A copy that may go on beside this one. Writes to one are never seen by the other."""
        ...

    def held(self, row: int, kind: int) -> range:
        """Numbers of the whole blocks that a row holds; block b has positions from b * KEY_BLOCK on."""
        ...

    def share(self, row: int, kind: int, number: int) -> KVBlock:
        """A whole block, to be kept and handed to other rows."""
        ...

    def replace(self, row: int, kind: int, number: int, block: KVBlock) -> None:
        """Let go of a whole block for an equal one that others hold too."""
        ...

    def share_carried(self, row: int) -> tuple[mx.array, ...]:
        """What all recurrent layers carry for a row now."""
        ...

    def adopt(self, length: int, blocks: Sequence[Sequence[KVBlock]], carried: Sequence[mx.array]) -> None:
        """Make this fresh state of one row hold `length` tokens, a multiple of KEY_BLOCK.

        `blocks[kind]` ends with the block before `length` and begins where retention says.
        """
        ...
