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
from ingle.kernels.ops import Activation
from ingle.kernels.packing import PackedLinear

if TYPE_CHECKING:
    from ingle.kernels._cpu import KVTable, Layer, Packed, Rope


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerParts:
    """A pre-norm decoder layer: x + s * mixed_norm(attention(input_norm(x))), then the same with the MLP.

    Norms are their factors, None where the layer has none. `rope` is (inv_freq [D/2], scale).
    """

    input_norm: mx.array
    mlp_norm: mx.array
    q_norm: mx.array | None
    k_norm: mx.array | None
    mixed_norm: mx.array | None
    output_norm: mx.array | None
    eps: float
    q: PackedLinear
    k: PackedLinear
    v: PackedLinear
    o: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear
    rope: Rope
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    activation: Activation
    residual_scale: float


def fused_rope(inv_freq: mx.array, scale: float) -> Rope | None:
    """The rotation of fused layers; layers that share it compute its angles once a step."""
    return native.cpu.make_rope(inv_freq, scale) if native.available() else None


def fuse(parts: LayerParts) -> Layer | None:
    """The layer as one operation, or None where a part of it is not native."""
    linears = [parts.q, parts.k, parts.v, parts.o, parts.gate, parts.up, parts.down]
    weights = [packed for p in linears if (packed := _native(p)) is not None]
    if len(weights) < len(linears):
        return None
    return native.cpu.make_layer(
        input_norm=parts.input_norm,
        mlp_norm=parts.mlp_norm,
        q_norm=parts.q_norm,
        k_norm=parts.k_norm,
        mixed_norm=parts.mixed_norm,
        output_norm=parts.output_norm,
        eps=parts.eps,
        qkv=weights[:3],
        qkv_biases=[p.bias for p in linears[:3]],
        others=weights[3:],
        other_biases=[p.bias for p in linears[3:]],
        rope=parts.rope,
        heads=parts.heads,
        kv_heads=parts.kv_heads,
        head_dim=parts.head_dim,
        scale=parts.scale,
        window=parts.window or 0,
        softcap=parts.softcap or 0.0,
        activation=parts.activation,
        residual_scale=parts.residual_scale,
    )


def _native(packed: PackedLinear) -> Packed | None:
    return None if isinstance(packed.weight, Dense | Affine) else packed.weight


def run_layers(
    layers: Sequence[object],
    hidden: mx.array,
    tables: Sequence[Sequence[object]],
    places: Sequence[tuple[int, int]],
    shapes: Sequence[tuple[int, int]],
    offsets: Sequence[int],
    after: Sequence[mx.array],
) -> mx.array:
    """Consecutive layers (from `fuse`) over the packed hidden states [tokens, hidden] of several groups.

    `tables[kind]` holds a table for each row of the groups, one group after the other, with room for
    the row's tokens; `places` says for each layer in which kind, as which of its layers, its KV lies;
    `shapes` are (rows, length) of the groups; `offsets` each row's first position;
    `after` what must be done before.
    """
    return native.cpu.decoder_layers(
        cast("Sequence[Layer]", layers),
        hidden,
        cast("Sequence[Sequence[KVTable]]", tables),
        places,
        shapes,
        offsets,
        after,
    )
