"""Qwen3, dense and with experts: normed queries and keys."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.layers.decoder_layer import DecoderLayer
from ingle.layers.experts import Router
from ingle.layers.feed_forward import FeedForward, NormedExperts, NormedMLP
from ingle.models.decoder import DecoderGraph, WeightReader


def build(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> DecoderGraph:
    """Read a Qwen3. Arrays are evaluated on the calling thread."""
    reader = WeightReader(source, config, dtype)
    size = config.hidden_size

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        return DecoderLayer(
            input_norm=reader.norm(f"{name}.input_layernorm", size),
            attention=reader.attention(f"{name}.self_attn", index, qk_norm=True),
            feed_forward=feed_forward(name),
        )

    def feed_forward(name: str) -> FeedForward:
        norm = reader.norm(f"{name}.post_attention_layernorm", size)
        if config.experts is None:
            return NormedMLP(norm, reader.mlp(f"{name}.mlp"))
        router = Router(reader.linear(f"{name}.mlp.gate", config.experts.count, size), config.experts.active)
        experts = reader.experts(f"{name}.mlp.experts", f"{name}.mlp.switch_mlp", config.experts)
        return NormedExperts(norm, router, experts)

    return reader.graph(layer)
