"""The Llama family: Llama 2 and 3, SmolLM2, Mistral-like decoders, MiniCPM (by its three scales)."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.graph import GroupPass, Projected
from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.models.decoder import DecoderGraph, WeightReader


class LlamaLayer:
    """Pre-norm attention and gated MLP. Residual branches are scaled where the model asks (MiniCPM)."""

    def __init__(self, reader: WeightReader, config: ModelConfig, index: int) -> None:
        name = f"model.layers.{index}"
        self._input_norm = reader.norm(f"{name}.input_layernorm", config.hidden_size)
        self._attention = reader.attention(f"{name}.self_attn", index)
        self._mlp_norm = reader.norm(f"{name}.post_attention_layernorm", config.hidden_size)
        self._mlp = reader.mlp(f"{name}.mlp")
        self._scale = config.residual_scale

    def before(self, hidden: mx.array) -> Projected:
        return self._attention.project(self._input_norm(hidden))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        return self._attention.attend(projected, run)

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        hidden = hidden + self._scaled(self._attention.output(mixed))
        return hidden + self._scaled(self._mlp(self._mlp_norm(hidden)))

    def _scaled(self, branch: mx.array) -> mx.array:
        return branch if self._scale == 1.0 else branch * self._scale


def build(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> DecoderGraph:
    """Read a Llama-family decoder. Arrays are evaluated on the calling thread."""
    reader = WeightReader(source, config, dtype)
    return reader.graph(lambda index: LlamaLayer(reader, config, index))
