"""What the Hugging Face dialects of all families spell alike: sizes, layer kinds, rotary settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ingle.contracts.model_config import LayerKind, RopeConfig
from ingle.errors import CheckpointError
from ingle.weights.fields import Fields

KIND_NAMES: Mapping[LayerKind, str] = {"full": "full_attention", "sliding": "sliding_attention"}


def common(fields: Fields, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """What all dialects spell alike."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if heads < 1:
        raise fields.refuse("num_attention_heads", "a positive number")
    return {
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": layers(fields),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "bos_token_id": fields.optional_integer("bos_token_id"),
        "eos_token_ids": tuple(sorted({*fields.token_ids("eos_token_id"), *eos_token_ids})),
    }


def layers(fields: Fields) -> int:
    layers = fields.integer("num_hidden_layers")
    if not 1 <= layers <= 4096:
        raise fields.refuse("num_hidden_layers", "1 to 4096")
    return layers


def layer_kinds(fields: Fields, layers: int) -> tuple[LayerKind, ...]:
    if fields.has("layer_types"):
        names: dict[Any, LayerKind] = {name: kind for kind, name in KIND_NAMES.items()}
        listed = fields.sequence("layer_types")
        if len(listed) != layers or not all(isinstance(name, str) and name in names for name in listed):
            raise fields.refuse("layer_types", f"{layers} of {', '.join(names)}")
        return tuple(names[name] for name in listed)
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    if pattern < 1:
        raise fields.refuse("sliding_window_pattern", "a positive number")
    return tuple("sliding" if (i + 1) % pattern else "full" for i in range(layers))


def rope_section(fields: Fields, kind: LayerKind) -> tuple[float, Fields]:
    """(theta, scaling fields) of one layer kind, whichever dialect the file speaks."""
    # The kinds' defaults; only models with sliding layers ever ask for "sliding".
    sliding_model = fields.has("sliding_window") or fields.text("model_type", "") == "gemma3_text"
    default = 10_000.0 if kind == "sliding" or not sliding_model else 1_000_000.0
    if fields.has("rope_parameters"):
        section = fields.section("rope_parameters")
        if section.has(KIND_NAMES[kind]):
            section = section.section(KIND_NAMES[kind])
        return section.number("rope_theta", fields.number("rope_theta", default)), section
    if kind == "sliding":
        return fields.number("rope_local_base_freq", default), Fields({}, fields.where)
    scaling = fields.section("rope_scaling") if fields.has("rope_scaling") else Fields({}, fields.where)
    original = fields.values.get("original_max_position_embeddings")
    if original is not None:
        merged = {"original_max_position_embeddings": original, **scaling.values}
        scaling = Fields(merged, scaling.where)
    return fields.number("rope_theta", default), scaling


def rope_of(theta: float, scaling: Fields, context: int) -> RopeConfig:
    if theta <= 0:
        raise CheckpointError(f"{scaling.where}: rope_theta is {theta}, expected a positive number")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=scaling.number("factor"))
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if not 0 < low < high:
            raise scaling.refuse("low_freq_factor", f"between 0 and high_freq_factor, {high}")
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=scaling.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_context_length=scaling.integer("original_max_position_embeddings"),
        )
    if kind == "proportional":
        part = scaling.number("partial_rotary_factor", 1.0)
        if not 0 < part <= 1:
            raise scaling.refuse("partial_rotary_factor", "above 0, at most 1")
        return RopeConfig(theta=theta, kind="proportional", rotated=part)
    if kind == "longrope":
        return _longrope(theta, scaling, context)
    raise CheckpointError(
        f"{scaling.where}: rope_type is {kind!r}; supported: default, linear, llama3, longrope, proportional"
    )


def _longrope(theta: float, scaling: Fields, context: int) -> RopeConfig:
    """LongRoPE with its short factors, for contexts up to the original length.

    The reference changes to the long factors when a sequence grows past that length, which would
    change the keys of tokens already computed; so the context is capped there instead.
    """
    original = scaling.integer("original_max_position_embeddings")
    if original < 2:
        raise scaling.refuse("original_max_position_embeddings", "at least 2")
    stretch = context / original
    attention = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return RopeConfig(
        theta=theta,
        kind="factors",
        factors=scaling.numbers("short_factor"),
        original_context_length=original,
        attention_factor=scaling.number("attention_factor", attention),
    )
