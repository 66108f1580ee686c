"""The Llama family: Llama 2 and 3, SmolLM2, Mistral-like decoders, MiniCPM (by its three scales)."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.layers.decoder_layer import DecoderLayer
from ingle.layers.feed_forward import NormedMLP
from ingle.models.decoder import DecoderGraph, WeightReader


def build(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> DecoderGraph:
    """Read a Llama-family decoder. Arrays are evaluated on the calling thread."""
    reader = WeightReader(source, config, dtype)

    def layer(index: int) -> DecoderLayer:
        name, size = f"model.layers.{index}", config.hidden_size
        return DecoderLayer(
            input_norm=reader.norm(f"{name}.input_layernorm", size),
            attention=reader.attention(f"{name}.self_attn", index),
            feed_forward=NormedMLP(
                reader.norm(f"{name}.post_attention_layernorm", size), reader.mlp(f"{name}.mlp")
            ),
            residual_scale=config.residual_scale,
        )

    return reader.graph(layer)
