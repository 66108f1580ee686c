"""The seam between a model's arithmetic and the step that schedules it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

import mlx.core as mx

from ingle.contracts.cache import KVView, RowState, StateLayout
from ingle.contracts.media import Block


class Phase(StrEnum):
    WINDOW = "window"  # a slice of one prompt
    DECODE = "decode"  # one pending token for each row
    VERIFY = "verify"  # each row's pending token and its drafts


class SoftTokens(NamedTuple):
    """Features that take the place of embeddings."""

    start: int  # number of the first of them among the group's tokens
    features: mx.array  # [count, hidden]


@lru_cache(maxsize=64)
def _places(lengths: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    """Of rows of these lengths: which token stands at [row, column], and at which of rows * columns places
    each token stands."""
    longest, start = max(lengths), 0
    rows: list[list[int]] = []
    for n in lengths:
        rows.append([min(start + i, max(start + n, 1) - 1) for i in range(longest)])
        start += n
    tokens = [r * longest + i for r, n in enumerate(lengths) for i in range(n)]
    places = mx.array(rows), mx.array(tokens)
    mx.eval(places)  # other threads may use them later
    return places


@dataclass(frozen=True, slots=True, eq=False)
class PhaseGroup:
    """Rows that run the same phase in one step, all with `length` tokens, or with `lengths` of their own."""

    phase: Phase
    ids: mx.array  # int32 [rows, length]; with `lengths` [tokens], row after row
    state: RowState
    lengths: tuple[int, ...] | None = None  # tokens of each row, where they differ; a row may have none
    soft: Sequence[SoftTokens] = ()
    # int32 [rows, length]: a token of a span that attends both ways sees positions below this, in sliding
    # layers; any other token up to its own
    ends: mx.array | None = None
    wanted: int | None = None  # hidden states of so many last tokens of each row are asked for; None: of all
    capture: Callable[[int, mx.array], None] | None = None  # (layer, hidden [rows, length, hidden]) tap

    @property
    def rows(self) -> int:
        return self.ids.shape[0] if self.lengths is None else len(self.lengths)

    @property
    def length(self) -> int:
        """Of the longest row."""
        return self.ids.shape[1] if self.lengths is None else max(self.lengths)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        return (self.ids.shape[1],) * self.ids.shape[0] if self.lengths is None else self.lengths

    @property
    def tokens(self) -> int:
        return self.ids.size

    @property
    def boundaries(self) -> int:
        """Of so many last tokens a recurrent layer hands over what it carries (`RowState.carry`)."""
        return self.length if self.revocable else 1

    @property
    def revocable(self) -> bool:
        """Its tokens may be taken back."""
        return self.phase is Phase.VERIFY

    def in_rows(self, x: mx.array) -> mx.array:
        """[tokens, ...] -> [rows, length, ...]; behind a shorter row's tokens stands anything."""
        if self.lengths is None:
            return x.reshape(self.rows, self.length, *x.shape[1:])
        return x[_places(self.lengths)[0]]

    def in_line(self, x: mx.array) -> mx.array:
        """[rows, length, ...] -> [tokens, ...]: the inverse of `in_rows`."""
        x = x.reshape(self.rows * self.length, *x.shape[2:])
        return x if self.lengths is None else x[_places(self.lengths)[1]]

    def last(self, count: int) -> PhaseGroup:
        """Its last `count` tokens of each row; not for rows of different lengths."""
        first = self.length - count
        ends = None if self.ends is None else self.ends[:, first:]
        return replace(self, ids=self.ids[:, first:], soft=(), ends=ends, wanted=None)


@dataclass(slots=True, eq=False)
class GroupPass:
    """What the layers of one forward share for one group. Lives and dies with that forward."""

    group: PhaseGroup
    offsets: tuple[int, ...]  # position of each row's first token
    shared_kv: dict[int, KVView] = field(default_factory=dict[int, KVView])  # what was written, by KV number

    def donor(self, kv_index: int) -> KVView:
        """KV that an earlier layer wrote in this forward, for the queries of this group."""
        view = self.shared_kv.get(kv_index)
        if view is None:  # a fused layer wrote it, to the state's tables
            view = self.group.state.view(kv_index)
        return view._replace(offsets=self.offsets)

    def last(self, count: int) -> GroupPass:
        """The same for the last `count` tokens of each row."""
        skipped = self.group.length - count
        return GroupPass(self.group.last(count), tuple([o + skipped for o in self.offsets]), self.shared_kv)


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """Queries, keys and values before rotation.

    Packed form: [tokens, heads, head_dim]. Group form: [rows, heads, length, head_dim].
    `keys` and `values` are None in layers that read a donor layer's KV.
    """

    queries: mx.array
    keys: mx.array | None
    values: mx.array | None

    def group_form(self, start: int, group: PhaseGroup) -> Projected:
        """The part of a packed projection that belongs to `group`, whose tokens begin at `start`."""

        def part(x: mx.array) -> mx.array:
            return group.in_rows(x[start : start + group.tokens]).transpose(0, 2, 1, 3)

        return Projected(
            part(self.queries),
            None if self.keys is None else part(self.keys),
            None if self.values is None else part(self.values),
        )


class GraphLayer(Protocol):
    """One decoder layer, split where rows stop being independent of each other.

    `before` and `after` treat every token on its own, so tokens of all groups run through them in
    one call. Only `attend` knows about sequences.
    """

    @property
    def fused(self) -> object | None:
        """All three steps as one operation (`kernels.fused`) that gives their bits, where there is one.

        A fused layer reads and writes nothing of a `GroupPass` but KV.
        """
        ...

    @property
    def kv_index(self) -> int:
        """KV number that the layer writes, or reads where it owns none."""
        ...

    def before(self, hidden: mx.array) -> Projected:
        """[tokens, hidden] -> packed projection."""
        ...

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        """Group form -> mixed values [rows, length, heads * head_dim]: rotation, cache, attention."""
        ...

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        """Output projection, residuals and MLP: [tokens, hidden] -> [tokens, hidden].

        `side` is this layer's slice [tokens, width] of the graph's per-layer token inputs, if any.
        """
        ...


class AssistantGraph(Protocol):
    """A drafter whose layers attend to its target's KV, at the place of the last valid entry."""

    @property
    def layers(self) -> Sequence[GraphLayer]:
        """They own no KV; `kv_index` are numbers of the target's."""
        ...

    def fused(self, target: ModelGraph) -> object | None:
        """All steps of a round as one operation (`kernels.fused`) with their tokens, where there is one."""
        ...

    def begin(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        """The target's embeddings of the newest tokens and the hidden states that these came from, both
        [rows, target's hidden] -> [rows, hidden]."""
        ...

    def norm(self, hidden: mx.array) -> mx.array: ...

    def logits(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [rows, hidden] -> float32 [rows, vocab]."""
        ...

    def back(self, hidden: mx.array) -> mx.array:
        """Normed hidden states -> what `begin` takes with the drafted token, [rows, target's hidden]."""
        ...


class ModelGraph(Protocol):
    @property
    def layers(self) -> Sequence[GraphLayer]: ...

    @property
    def stateful_layers(self) -> int:
        """Layers behind the first so many change no row state: they may skip tokens nobody asks about."""
        ...

    @property
    def whole_block(self) -> int:
        """Most tokens of a span that attends both ways: one window computes all of it. 0: no such spans."""
        ...

    def embed(self, ids: mx.array) -> mx.array:
        """int32 [tokens] -> [tokens, hidden]."""
        ...

    @property
    def embedding_parts(self) -> object | None:
        """What `embed` is made of (`kernels.fused`), for operations that do it too; None: they cannot."""
        ...

    def encode(self, block: Block) -> mx.array:
        """The features of a picture, a frame or a sound as soft tokens: [block.soft_tokens, hidden].

        A pure function of the block's arrays. Evaluated.

        Raises:
            ValueError: the graph has no encoder for this kind.
        """
        ...

    def side_inputs(self, ids: mx.array, hidden: mx.array) -> mx.array | None:
        """Per-layer token inputs [tokens, layers, width], or None for models without them."""
        ...

    def norm(self, hidden: mx.array) -> mx.array: ...

    def logits(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [tokens, hidden] -> float32 [tokens, vocab]."""
        ...

    @property
    def layout(self) -> StateLayout:
        """What a row remembers."""
        ...

    def make_state(self, rows: int) -> RowState: ...

    @property
    def step_bytes(self) -> Callable[[int, int], int]:
        """(tokens, rows) -> the most that a step of so many tokens, with logits for so many rows, holds
        beside weights and state. Holds no weight itself."""
        ...
