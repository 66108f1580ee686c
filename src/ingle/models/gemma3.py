"""Gemma 3 text: sliding and full layers, norms around both branches, normed queries and keys."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.graph import GroupPass, Projected
from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.models.decoder import DecoderGraph, WeightReader


class Gemma3Layer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, reader: WeightReader, config: ModelConfig, index: int) -> None:
        name, size = f"model.layers.{index}", config.hidden_size
        self._input_norm = reader.norm(f"{name}.input_layernorm", size)
        self._attention = reader.attention(f"{name}.self_attn", index, qk_norm=True)
        self._mixed_norm = reader.norm(f"{name}.post_attention_layernorm", size)
        self._mlp_norm = reader.norm(f"{name}.pre_feedforward_layernorm", size)
        self._mlp = reader.mlp(f"{name}.mlp")
        self._output_norm = reader.norm(f"{name}.post_feedforward_layernorm", size)

    def before(self, hidden: mx.array) -> Projected:
        return self._attention.project(self._input_norm(hidden))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        return self._attention.attend(projected, run)

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        hidden = hidden + self._mixed_norm(self._attention.output(mixed))
        return hidden + self._output_norm(self._mlp(self._mlp_norm(hidden)))


def build(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> DecoderGraph:
    """Read a Gemma 3 text decoder. Arrays are evaluated on the calling thread."""
    reader = WeightReader(source, config, dtype)
    return reader.graph(lambda index: Gemma3Layer(reader, config, index))
