"""Gemma 4's configuration dialects: with towers, without, text alone; of transformers 5 and before.

transformers 5 writes what full layers have of their own as `per_layer_config`; older files as
`global_head_dim` and `num_global_key_value_heads`. Defaults are those of transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ingle.contracts.encoder_config import (
    Audio,
    AudioTowerConfig,
    EncodersConfig,
    MergedPatchesConfig,
    RawAudioConfig,
    Vision,
    VisionTowerConfig,
)
from ingle.contracts.model_config import (
    AssistantConfig,
    ExpertsConfig,
    HeadShape,
    LayerKind,
    ModelConfig,
    PerLayerConfig,
    RopeConfig,
)
from ingle.weights.fields import Fields
from ingle.weights.hf_shared import KIND_NAMES, common, layer_kinds, rope_of, rope_section

_DEFAULT_ROPE: Mapping[LayerKind, RopeConfig] = {
    "sliding": RopeConfig(theta=10_000.0),
    "full": RopeConfig(theta=1_000_000.0, kind="proportional", rotated=0.25),
}
_SOFT_TOKENS = {"image_token_id": 258_880, "audio_token_id": 258_881, "video_token_id": 258_884}


def _text(
    fields: Fields, ends: tuple[int, ...], *, unified: bool = False, family: str = "gemma4", **more: Any
) -> ModelConfig:
    shared = common(fields, ends)
    _require(fields, {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False})
    both_ways = fields.values.get("use_bidirectional_attention")
    if both_ways not in (None, "vision"):
        raise fields.refuse("use_bidirectional_attention", 'null, "vision"')
    context = fields.integer("max_position_embeddings", 262_144 if unified else 131_072)
    kinds = list(layer_kinds(fields, shared["num_layers"]))
    kinds[-1] = "full"  # the reference forces it
    head_dim = fields.integer("head_dim", 256)
    return ModelConfig(
        **shared,
        **more,
        family=family,
        head_dim=head_dim,
        full_heads=_full_heads(fields, tuple(kinds), shared["num_kv_heads"], head_dim),
        context_length=context,
        activation="gelu_tanh",
        tied_head=fields.boolean("tie_word_embeddings", True),
        layer_kinds=tuple(kinds),
        rope={kind: _rope(fields, kind, context) for kind in KIND_NAMES},
        window=fields.integer("sliding_window", 512),
        attention_scale=1.0,
        final_softcap=fields.optional_number("final_logit_softcapping"),
        embed_scale=math.sqrt(shared["hidden_size"]),
        shared_kv_layers=fields.integer("num_kv_shared_layers", 0),
        wide_shared_mlp=fields.boolean("use_double_wide_mlp", False),
        per_layer=None if unified else _per_layer(fields),
        experts=_experts(fields),
    )


def _rope(fields: Fields, kind: LayerKind, context: int) -> RopeConfig:
    if not fields.has("rope_parameters"):
        return _DEFAULT_ROPE[kind]
    return rope_of(*rope_section(fields, kind), context)


def _full_heads(fields: Fields, kinds: tuple[LayerKind, ...], kv_heads: int, head_dim: int) -> HeadShape:
    """What full layers have of their own, whichever dialect says it."""
    same = fields.boolean("attention_k_eq_v", False)
    if not fields.has("per_layer_config"):
        own = fields.integer("num_global_key_value_heads", kv_heads) if same else kv_heads
        return HeadShape(own, fields.integer("global_head_dim", 512), same)
    section = fields.section("per_layer_config")
    shapes: set[HeadShape] = set()
    for index, kind in enumerate(kinds):
        layer = section.section(str(index)) if section.has(str(index)) else Fields({}, section.where)
        unknown = set(layer.values) - {"head_dim", "num_key_value_heads"}
        shape = HeadShape(
            layer.integer("num_key_value_heads", kv_heads), layer.integer("head_dim", head_dim), same
        )
        plain = HeadShape(kv_heads, head_dim, same)
        if unknown or (kind == "sliding" and shape != plain):
            raise section.refuse(str(index), "head_dim and num_key_value_heads of full layers")
        if kind == "full":
            shapes.add(shape)
    if len(shapes) != 1:
        raise fields.refuse("per_layer_config", "the same for every full layer")
    return shapes.pop()


def _per_layer(fields: Fields) -> PerLayerConfig | None:
    width = fields.integer("hidden_size_per_layer_input", 256)
    if width < 0:
        raise fields.refuse("hidden_size_per_layer_input", "0 or more")
    if not width:
        return None
    return PerLayerConfig(width, fields.integer("vocab_size_per_layer_input", fields.integer("vocab_size")))


def _experts(fields: Fields) -> ExpertsConfig | None:
    if not fields.boolean("enable_moe_block", False):
        return None
    return ExpertsConfig(
        count=fields.integer("num_experts"),
        active=fields.integer("top_k_experts"),
        intermediate_size=fields.integer("moe_intermediate_size"),
    )


def _with_media(fields: Fields, ends: tuple[int, ...], *, unified: bool) -> ModelConfig:
    text = fields.section("text_config")
    vision: Vision | None = None
    audio: Audio | None = None
    if fields.has("vision_config"):
        section = fields.section("vision_config")
        vision = _merged_patches(section) if unified else _vision_tower(section)
    if fields.has("audio_config"):
        section = fields.section("audio_config")
        audio = _raw_audio(section) if unified else _audio_tower(section)
    encoders = None
    if vision is not None or audio is not None:
        ids = {fields.integer(key, default) for key, default in _SOFT_TOKENS.items()}
        encoders = EncodersConfig(
            vision=vision,
            audio=audio,
            soft_token_ids=frozenset(ids),
            pad_token_id=text.integer("pad_token_id", 0),
            both_ways=text.values.get("use_bidirectional_attention") == "vision",
        )
    own = fields.token_ids("eos_token_id")
    return _text(text, (*own, *ends), unified=unified, encoders=encoders)


def _vision_tower(fields: Fields) -> VisionTowerConfig:
    _require(fields, {"hidden_activation": "gelu_pytorch_tanh", "patch_size": 16, "pooling_kernel_size": 3})
    rope = fields.section("rope_parameters") if fields.has("rope_parameters") else Fields({}, fields.where)
    _require(rope, {"rope_type": "axial"})
    heads = fields.integer("num_attention_heads", 12)
    if fields.integer("num_key_value_heads", heads) != heads:
        raise fields.refuse("num_key_value_heads", f"num_attention_heads, {heads}")
    config = VisionTowerConfig(
        hidden_size=fields.integer("hidden_size", 768),
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_layers=fields.integer("num_hidden_layers", 16),
        num_heads=heads,
        head_dim=fields.integer("head_dim", 64),
        positions=fields.integer("position_embedding_size", 10_240),
        rope_theta=rope.number("rope_theta", 100.0),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        clipped=fields.boolean("use_clipped_linears", False),
        standardize=fields.boolean("standardize", False),
    )
    if config.head_dim < 4 or config.head_dim % 4:
        raise fields.refuse("head_dim", "a multiple of 4: half of it turns with x, half with y")
    return config


def _audio_tower(fields: Fields) -> AudioTowerConfig:
    _require(fields, {"hidden_act": "silu", "attention_context_right": 0})
    channels = (
        fields.numbers("subsampling_conv_channels") if fields.has("subsampling_conv_channels") else (128, 32)
    )
    if len(channels) != 2 or channels[0] != 128:
        raise fields.refuse("subsampling_conv_channels", "128 and another")
    return AudioTowerConfig(
        hidden_size=fields.integer("hidden_size", 1024),
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 8),
        channels=(int(channels[0]), int(channels[1])),
        kernel=fields.integer("conv_kernel_size", 5),
        chunk=fields.integer("attention_chunk_size", 12),
        past=fields.integer("attention_context_left", 13) - 1,
        logit_cap=fields.number("attention_logit_cap", 50.0),
        residual_weight=fields.number("residual_weight", 0.5),
        output_size=fields.integer("output_proj_dims", 1536),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        clipped=fields.boolean("use_clipped_linears", True),
    )


def _merged_patches(fields: Fields) -> MergedPatchesConfig:
    _require(fields, {"patch_size": 16, "pooling_kernel_size": 3})
    width = fields.integer("mm_embed_dim", 3840)
    if fields.integer("output_proj_dims", width) != width:
        raise fields.refuse("output_proj_dims", f"mm_embed_dim, {width}")
    positions = fields.integer("mm_posemb_size", 1120)
    return MergedPatchesConfig(width=width, positions=positions, norm_eps=fields.number("rms_norm_eps", 1e-6))


def _raw_audio(fields: Fields) -> RawAudioConfig:
    _require(fields, {"audio_embed_dim": 640})
    return RawAudioConfig(norm_eps=fields.number("rms_norm_eps", 1e-6))


def _require(fields: Fields, wanted: Mapping[str, str | int | bool]) -> None:
    for key, value in wanted.items():
        if fields.values.get(key, value) != value:
            raise fields.refuse(key, str(value).lower())


def _assistant(fields: Fields, ends: tuple[int, ...], *, unified: bool) -> ModelConfig:
    """A drafter. Its layers have no per-layer inputs and no experts."""
    text = fields.section("text_config")
    ordered = fields.boolean("use_ordered_embeddings", False)
    config = _text(
        text,
        ends,
        unified=unified,
        family="gemma4_assistant",
        assistant=AssistantConfig(
            backbone_size=fields.integer("backbone_hidden_size"),
            centroids=fields.integer("num_centroids", 2048) if ordered else None,
            active_centroids=fields.integer("centroid_intermediate_top_k", 32) if ordered else 0,
        ),
    )
    if config.per_layer is not None:
        raise text.refuse("hidden_size_per_layer_input", "0 for an assistant")
    if config.experts is not None:
        raise text.refuse("enable_moe_block", "false for an assistant")
    if not config.tied_head:
        raise text.refuse("tie_word_embeddings", "true for an assistant")
    return config


READERS: Mapping[str, Callable[[Fields, tuple[int, ...]], ModelConfig]] = {
    "gemma4": lambda fields, ends: _with_media(fields, ends, unified=False),
    "gemma4_text": _text,
    "gemma4_unified": lambda fields, ends: _with_media(fields, ends, unified=True),
    "gemma4_unified_text": lambda fields, ends: _text(fields, ends, unified=True),
    "gemma4_assistant": lambda fields, ends: _assistant(fields, ends, unified=False),
    "gemma4_unified_assistant": lambda fields, ends: _assistant(fields, ends, unified=True),
}
