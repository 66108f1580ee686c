"""Gemma 4's vision transformer: patches of a picture or a frame to soft tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from ingle.contracts.encoder_config import VisionTowerConfig
from ingle.contracts.weights import WeightSource
from ingle.kernels import ops
from ingle.layers.clipped import ClippedLinear
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm
from ingle.models.tower_reader import Projector, TowerReader

POOL = 3  # patches of a side that one soft token stands for
PATCH_VALUES = 16 * 16 * 3


class AxialRope:
    """The first half of each head turns with x, the second with y, each by halves of its own.

    Frequencies are theta^(-2j / (head_dim / 2)), as in transformers' `Gemma4VisionRotaryEmbedding`.
    """

    def __init__(self, positions: mx.array, head_dim: int, theta: float, dtype: mx.Dtype) -> None:
        half = head_dim // 2
        exponents = mx.arange(0, half, 2).astype(mx.float32) / half
        inv_freq = 1.0 / mx.power(mx.array(theta, mx.float32), exponents)
        angles = positions.astype(mx.float32)[..., None] * inv_freq  # [patches, 2, head_dim / 4]
        self._cos, self._sin = mx.cos(angles).astype(dtype), mx.sin(angles).astype(dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """[heads, patches, head_dim]"""
        parts = x.reshape(*x.shape[:2], 2, 2, -1)
        a, b = parts[:, :, :, 0], parts[:, :, :, 1]
        cos, sin = self._cos, self._sin
        return mx.stack([a * cos - b * sin, b * cos + a * sin], axis=3).reshape(x.shape)


@dataclass(frozen=True, slots=True, eq=False)
class VisionLayer:
    """The decoder's layer with four norms, but every patch sees every patch."""

    input_norm: RMSNorm
    q: ClippedLinear
    k: ClippedLinear
    v: ClippedLinear
    o: ClippedLinear
    q_norm: RMSNorm
    k_norm: RMSNorm
    v_norm: RMSNorm
    mixed_norm: RMSNorm
    mlp_norm: RMSNorm
    gate: ClippedLinear
    up: ClippedLinear
    down: ClippedLinear
    output_norm: RMSNorm
    head_dim: int

    def __call__(self, x: mx.array, rope: AxialRope) -> mx.array:
        """[patches, hidden] -> [patches, hidden]"""
        y = self.input_norm(x)
        queries = rope(self._heads(self.q(y), self.q_norm))
        keys = rope(self._heads(self.k(y), self.k_norm))
        values = self._heads(self.v(y), self.v_norm)
        mixed = ops.attend_all(queries, keys, values, scale=1.0)
        mixed = mixed.transpose(1, 0, 2).reshape(x.shape[0], -1)
        x = x + self.mixed_norm(self.o(mixed))
        y = self.mlp_norm(x)
        return x + self.output_norm(self.down(ops.gated(self.gate(y), self.up(y), "gelu_tanh")))

    def _heads(self, x: mx.array, norm: RMSNorm) -> mx.array:
        return norm(x.reshape(x.shape[0], -1, self.head_dim)).transpose(1, 0, 2)


class VisionTower:
    """{"patches": [N, 768] in [0, 1], "positions": [N, 2] of (x, y)} -> [N / 9, hidden of the decoder].

    Patches come row by row, and fill a grid whose sides are multiples of 3.
    """

    def __init__(
        self, config: VisionTowerConfig, source: WeightSource, dtype: mx.Dtype, outputs: int
    ) -> None:
        c = self._config = config
        read = TowerReader(source, dtype, c.norm_eps, c.clipped)
        embedder, size = "vision_tower.patch_embedder", c.hidden_size
        self._dtype = dtype
        self._project: Linear = read.linear(f"{embedder}.input_proj", size, PATCH_VALUES)
        self._table = read.tensor(f"{embedder}.position_embedding_table", 2, c.positions, size)
        self._layers = [self._layer(read, f"vision_tower.encoder.layers.{i}") for i in range(c.num_layers)]
        self._standard: tuple[mx.array, mx.array] | None = None
        if c.standardize:
            bias, scale = (read.tensor(f"vision_tower.std_{name}", size) for name in ("bias", "scale"))
            self._standard = bias.astype(mx.float32), scale.astype(mx.float32)
        self._projector: Projector = read.projector("embed_vision", outputs, size)

    def __call__(self, features: Mapping[str, mx.array]) -> mx.array:
        return self._projector(self.pooled(features))

    def pooled(self, features: Mapping[str, mx.array]) -> mx.array:
        """Before the projector: [N / 9, hidden]."""
        patches, positions = features["patches"], features["positions"]
        x = self._project((2 * (patches - 0.5)).astype(self._dtype))
        x = x + self._table[0][positions[:, 0]] + self._table[1][positions[:, 1]]
        rope = AxialRope(positions, self._config.head_dim, self._config.rope_theta, self._dtype)
        for layer in self._layers:
            x = layer(x, rope)
            mx.eval(x)
        columns = int(cast("int", positions[:, 0].max().item())) + 1
        grid = x.astype(mx.float32).reshape(-1, POOL, columns // POOL, POOL, x.shape[-1])
        pooled = mx.mean(grid, axis=(1, 3)).reshape(-1, x.shape[-1]) * (x.shape[-1] ** 0.5)
        if self._standard is not None:
            bias, scale = self._standard
            pooled = (pooled - bias) * scale
        return pooled.astype(self._dtype)

    def _layer(self, read: TowerReader, name: str) -> VisionLayer:
        c = self._config
        size, inner, mixed, dim = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim, c.head_dim
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return VisionLayer(
            input_norm=read.norm(f"{name}.input_layernorm", size),
            q=read.clipped_linear(f"{attention}.q_proj", mixed, size),
            k=read.clipped_linear(f"{attention}.k_proj", mixed, size),
            v=read.clipped_linear(f"{attention}.v_proj", mixed, size),
            o=read.clipped_linear(f"{attention}.o_proj", size, mixed),
            q_norm=read.norm(f"{attention}.q_norm", dim),
            k_norm=read.norm(f"{attention}.k_norm", dim),
            v_norm=read.plain_norm(dim),
            mixed_norm=read.norm(f"{name}.post_attention_layernorm", size),
            mlp_norm=read.norm(f"{name}.pre_feedforward_layernorm", size),
            gate=read.clipped_linear(f"{mlp}.gate_proj", inner, size),
            up=read.clipped_linear(f"{mlp}.up_proj", inner, size),
            down=read.clipped_linear(f"{mlp}.down_proj", size, inner),
            output_norm=read.norm(f"{name}.post_feedforward_layernorm", size),
            head_dim=dim,
        )
