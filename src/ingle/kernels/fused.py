"""Whole decoder layers as one native operation.

A fused layer is made of the same phases as the single operations of `ops` and gives their bits. It
exists where every part of the layer is native; elsewhere a layer runs operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from ingle.contracts.weights import Affine, Dense
from ingle.kernels import native
from ingle.kernels.ops import Activation, Choice, native_draws
from ingle.kernels.packing import PackedLinear

if TYPE_CHECKING:
    from ingle.kernels._cpu import Drafter, KVTable, Layer, Packed, Rope


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerParts:
    """A pre-norm decoder layer: x + s * mixed_norm(attention(input_norm(x))), then the same with the MLP,
    then x + side_norm(side(x)), all times `output_scale`.

    Norms are their factors, None where the layer has none. `qkv` are query, key and value projections;
    without the last values are the keys before their norm, without the last two the layer reads KV that
    another one wrote. `side` is (gate, projection) of the branch that takes per-layer inputs.
    """

    input_norm: mx.array
    mlp_norm: mx.array
    q_norm: mx.array | None
    k_norm: mx.array | None
    v_norm: mx.array | None
    mixed_norm: mx.array | None
    output_norm: mx.array | None
    eps: float
    qkv: Sequence[PackedLinear]
    o: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear
    side: tuple[PackedLinear, PackedLinear] | None
    side_norm: mx.array | None
    rope: Rope
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    activation: Activation
    residual_scale: float
    output_scale: float


def fused_rope(inv_freq: mx.array, scale: float) -> Rope | None:
    """The rotation of fused layers; layers that share it compute its angles once a step."""
    return native.cpu.make_rope(inv_freq, scale) if native.available() else None


def fuse(parts: LayerParts) -> Layer | None:
    """The layer as one operation, or None where a part of it is not native."""
    linears = [*parts.qkv, parts.o, parts.gate, parts.up, parts.down, *(parts.side or ())]
    weights = [packed for p in linears if (packed := _native(p)) is not None]
    if len(weights) < len(linears):
        return None
    count = len(parts.qkv)
    return native.cpu.make_layer(
        input_norm=parts.input_norm,
        mlp_norm=parts.mlp_norm,
        q_norm=parts.q_norm,
        k_norm=parts.k_norm,
        v_norm=parts.v_norm,
        mixed_norm=parts.mixed_norm,
        output_norm=parts.output_norm,
        eps=parts.eps,
        side_norm=parts.side_norm,
        qkv=weights[:count],
        qkv_biases=[p.bias for p in linears[:count]],
        others=weights[count:],
        other_biases=[p.bias for p in linears[count:]],
        rope=parts.rope,
        heads=parts.heads,
        kv_heads=parts.kv_heads,
        head_dim=parts.head_dim,
        scale=parts.scale,
        window=parts.window or 0,
        softcap=parts.softcap or 0.0,
        activation=parts.activation,
        residual_scale=parts.residual_scale,
        output_scale=parts.output_scale,
    )


def _native(packed: PackedLinear) -> Packed | None:
    return None if isinstance(packed.weight, Dense | Affine) else packed.weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRun:
    """What consecutive layers run over: the packed tokens of several groups, one group after the other."""

    tables: Sequence[Sequence[object]]  # of each kind: of each row, with room for the row's tokens
    places: Sequence[tuple[int, int]]  # of each layer: in which kind, as which of its layers, its KV lies
    shapes: Sequence[tuple[int, int]]  # (rows, length) of each group
    offsets: Sequence[int]  # of each row: its first position
    ends: Sequence[Sequence[int]]  # of each row: for each token, sliding layers see below; empty: its own
    sides: mx.array | None  # [tokens, layers, width]: per-layer inputs
    after: Sequence[mx.array]  # what must be done before


def run_layers(layers: Sequence[object], hidden: mx.array, run: LayerRun) -> mx.array:
    """Layers (from `fuse`) over hidden states [tokens, hidden]."""
    return native.cpu.decoder_layers(
        cast("Sequence[Layer]", layers),
        hidden,
        cast("Sequence[Sequence[KVTable]]", run.tables),
        run.places,
        run.shapes,
        run.offsets,
        run.ends,
        run.sides,
        run.after,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingParts:
    """A model's token embeddings: row `text_ids[token]` of the table (the token's own where None), scaled."""

    table: PackedLinear
    scale: float
    text_ids: mx.array | None  # int32 [vocab]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssistantParts:
    """norm(layers(pre(embedding, hidden))); the head makes logits of it, `post` the next hidden state."""

    pre: PackedLinear
    layers: Sequence[object]  # from `fuse`
    norm: mx.array
    eps: float
    head: PackedLinear
    softcap: float | None
    post: PackedLinear


def fuse_drafter(embedding: EmbeddingParts, parts: AssistantParts) -> Drafter | None:
    """All steps of a round as one operation, or None where a part of it is not native."""
    weights = [_native(p) for p in (embedding.table, parts.pre, parts.head, parts.post)]
    packed = [w for w in weights if w is not None]
    if len(packed) < len(weights) or None in parts.layers:
        return None
    table, pre, head, post = packed
    return native.cpu.make_drafter(
        table=table,
        scale=embedding.scale,
        text_ids=embedding.text_ids,
        pre=pre,
        layers=cast("Sequence[Layer]", parts.layers),
        norm=parts.norm,
        eps=parts.eps,
        head=head,
        softcap=parts.softcap or 0.0,
        post=post,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftRun:
    """What a round runs over: rows in order of falling depth. As `LayerRun` where names are the same."""

    tables: Sequence[Sequence[object]]
    places: Sequence[tuple[int, int]]
    offsets: Sequence[int]
    depths: Sequence[int]
    after: Sequence[mx.array]


def run_drafter(
    drafter: object, tokens: mx.array, hidden: mx.array, run: DraftRun, choices: Sequence[Choice]
) -> mx.array:
    """int32 [drafts]: first those of the first step, of each row, then those of the second.

    `tokens` int32 [rows] and `hidden` [rows, target's hidden] are what the round begins with; `choices` are
    of each draft, in the order of the result. -1 where logits are not finite.
    """
    return native.cpu.draft(
        cast("Drafter", drafter),
        tokens,
        hidden,
        cast("Sequence[Sequence[KVTable]]", run.tables),
        run.places,
        run.offsets,
        run.depths,
        native_draws(choices),
        run.after,
    )
