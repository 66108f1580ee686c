"""Gemma 4: E2B, E4B, 12B (without towers), 26B-A4B and 31B in one shape.

The architecture is that of Google's Gemma 4 as transformers 5.24 has it; where its forward and DeepMind's
own code differ (how the tokens of a picture see each other) this follows DeepMind's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx

from ingle.contracts.encoder_config import (
    AudioTowerConfig,
    EncodersConfig,
    MergedPatchesConfig,
    RawAudioConfig,
    VisionTowerConfig,
)
from ingle.contracts.model_config import ExpertsConfig, ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.layers.decoder_layer import DecoderLayer
from ingle.layers.experts import Router
from ingle.layers.feed_forward import DenseAndExperts, FeedForward, NormedMLP
from ingle.layers.linear import Embedding
from ingle.layers.norm import RMSNorm
from ingle.layers.per_layer import PerLayerEmbedding, PerLayerInput
from ingle.models.decoder import DecoderGraph, WeightReader
from ingle.models.encoders import Encoders
from ingle.models.gemma4_audio import AudioTower
from ingle.models.gemma4_flat import MergedPatches, RawAudio
from ingle.models.gemma4_vision import VisionTower


def build(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> DecoderGraph:
    """Read a Gemma 4 with whatever encoders it has. Arrays are evaluated on the calling thread."""
    reader = WeightReader(source, config, dtype)
    size = config.hidden_size

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        return DecoderLayer(
            input_norm=reader.norm(f"{name}.input_layernorm", size),
            attention=reader.attention(f"{name}.self_attn", index, qk_norm=True, v_norm=True),
            mixed_norm=reader.norm(f"{name}.post_attention_layernorm", size),
            feed_forward=feed_forward(name, index),
            output_norm=reader.norm(f"{name}.post_feedforward_layernorm", size),
            per_layer=per_layer_input(name),
            output_scale=reader.scalar(f"{name}.layer_scalar", 1),
        )

    def feed_forward(name: str, index: int) -> FeedForward:
        wide = config.wide_shared_mlp and index >= config.owning_layers
        norm = reader.norm(f"{name}.pre_feedforward_layernorm", size)
        dense = NormedMLP(norm, reader.mlp(f"{name}.mlp", widened=2 if wide else 1))
        if config.experts is None:
            return dense
        return DenseAndExperts(
            dense=dense,
            dense_norm=reader.norm(f"{name}.post_feedforward_layernorm_1", size),
            router=router(f"{name}.router", config.experts),
            norm=reader.norm(f"{name}.pre_feedforward_layernorm_2", size),
            experts=reader.experts(f"{name}.experts", f"{name}.experts.switch_glu", config.experts),
            experts_norm=reader.norm(f"{name}.post_feedforward_layernorm_2", size),
        )

    def router(name: str, experts: ExpertsConfig) -> Router:
        scale = reader.tensor(f"{name}.scale", size) * (size**-0.5)
        return Router(
            reader.linear(f"{name}.proj", experts.count, size),
            experts.active,
            RMSNorm(scale, config.norm_eps),
            reader.tensor(f"{name}.per_expert_scale", experts.count),
        )

    def per_layer_input(name: str) -> PerLayerInput | None:
        if config.per_layer is None:
            return None
        return PerLayerInput(
            gate=reader.linear(f"{name}.per_layer_input_gate", config.per_layer.width, size),
            project=reader.linear(f"{name}.per_layer_projection", size, config.per_layer.width),
            norm=reader.norm(f"{name}.post_per_layer_input_norm", size),
        )

    encoders = None
    if config.encoders is not None:
        encoders = Encoders(_encoders(config.encoders, source, dtype, size))
    return reader.graph(layer, _per_layer_embedding(reader, config), encoders)


def _encoders(
    config: EncodersConfig, source: WeightSource, dtype: mx.Dtype, size: int
) -> Mapping[str, Callable[[Mapping[str, mx.array]], mx.array]]:
    encoders: dict[str, Callable[[Mapping[str, mx.array]], mx.array]] = {}
    match config.vision:
        case VisionTowerConfig() as vision:
            encoders["patches"] = VisionTower(vision, source, dtype, size)
        case MergedPatchesConfig() as vision:
            encoders["patches"] = MergedPatches(vision, source, dtype, size)
        case None:
            pass
    match config.audio:
        case AudioTowerConfig() as audio:
            encoders["mel"] = AudioTower(audio, source, dtype, size)
        case RawAudioConfig() as audio:
            encoders["raw"] = RawAudio(audio, source, dtype, size)
        case None:
            pass
    return encoders


def _per_layer_embedding(reader: WeightReader, config: ModelConfig) -> PerLayerEmbedding | None:
    if config.per_layer is None:
        return None
    width, layers = config.per_layer.width, config.num_layers
    table = reader.linear("model.embed_tokens_per_layer", config.per_layer.vocab_size, layers * width)
    return PerLayerEmbedding(
        table=Embedding(table, width**0.5),
        project=reader.linear("model.per_layer_model_projection", layers * width, config.hidden_size),
        norm=reader.norm("model.per_layer_projection_norm", width),
        layers=layers,
        width=width,
    )
