"""Hugging Face `config.json` dialects to our configuration.

transformers 5 writes rotary settings as `rope_parameters`, flat or by layer type; older files use
`rope_theta`, `rope_scaling` and `rope_local_base_freq`. Both give the same `ModelConfig`. Defaults
for absent keys are those of transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ingle.contracts.model_config import LayerKind, ModelConfig, RopeConfig
from ingle.errors import CheckpointError
from ingle.weights.fields import Fields

_KIND_NAMES: Mapping[LayerKind, str] = {"full": "full_attention", "sliding": "sliding_attention"}


def model_config(
    config: Mapping[str, Any], where: str, *, eos_token_ids: tuple[int, ...] = ()
) -> ModelConfig:
    """`eos_token_ids` are those of other files (generation_config.json); they are added.

    Raises:
        CheckpointError: a model type, rotary kind, activation or variant that we do not have, or a
            value of the wrong type; names the key, the value and what is supported.
    """
    fields = Fields(config, where)
    kind = fields.text("model_type")
    reader = _READERS.get(kind)
    if reader is None:
        raise fields.refuse("model_type", ", ".join(_READERS))
    return reader(fields, eos_token_ids)


def _common(fields: Fields, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """What all dialects spell alike."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if heads < 1:
        raise fields.refuse("num_attention_heads", "a positive number")
    return {
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": _layers(fields),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "bos_token_id": fields.optional_integer("bos_token_id"),
        "eos_token_ids": tuple(sorted({*fields.token_ids("eos_token_id"), *eos_token_ids})),
    }


def _layers(fields: Fields) -> int:
    layers = fields.integer("num_hidden_layers")
    if not 1 <= layers <= 4096:
        raise fields.refuse("num_hidden_layers", "1 to 4096")
    return layers


def _llama(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    common = _common(fields, eos_token_ids)
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.refuse("hidden_act", "silu")
    if fields.has("sliding_window"):
        raise fields.refuse("sliding_window", "null for this model type")
    context = fields.integer("max_position_embeddings", 2048)
    rope = _rope(*_rope_section(fields, "full"), context)
    if rope.kind == "factors":
        context = min(context, rope.original_context_length)
    head_dim = fields.integer("head_dim", common["hidden_size"] // common["num_heads"])
    minicpm = fields.text("model_type") == "minicpm"
    scales: dict[str, Any] = {}
    if minicpm:
        scales = {
            "embed_scale": fields.number("scale_emb", 1.0),
            "residual_scale": fields.number("scale_depth", 1.0) / math.sqrt(common["num_layers"]),
            "logit_scale": fields.number("dim_model_base", 1.0) / common["hidden_size"],
        }
    bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        **common,
        **scales,
        family="llama",
        head_dim=head_dim,
        context_length=context,
        activation="silu",
        tied_head=fields.boolean("tie_word_embeddings", minicpm),
        layer_kinds=("full",) * common["num_layers"],
        rope={"full": rope},
        attention_scale=head_dim**-0.5,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def _gemma3_text(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    common = _common(fields, eos_token_ids)
    if fields.text("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise fields.refuse("hidden_activation", "gelu_pytorch_tanh")
    if fields.boolean("use_bidirectional_attention", False):
        raise fields.refuse("use_bidirectional_attention", "false")
    context = fields.integer("max_position_embeddings", 131_072)
    bias = fields.boolean("attention_bias", False)
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.refuse("query_pre_attn_scalar", "a positive number")
    return ModelConfig(
        **common,
        family="gemma3",
        head_dim=fields.integer("head_dim", 256),
        context_length=context,
        activation="gelu_tanh",
        tied_head=fields.boolean("tie_word_embeddings", True),
        layer_kinds=_layer_kinds(fields, common["num_layers"]),
        rope={kind: _rope(*_rope_section(fields, kind), context) for kind in _KIND_NAMES},
        window=fields.integer("sliding_window", 4096),
        attention_scale=scalar**-0.5,
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        attention_bias=bias,
        output_bias=bias,
        embed_scale=math.sqrt(common["hidden_size"]),
    )


def _gemma3(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    """The vision-language wrapper: its text part."""
    own = fields.token_ids("eos_token_id")
    return _gemma3_text(fields.section("text_config"), (*own, *eos_token_ids))


_READERS: Mapping[str, Callable[[Fields, tuple[int, ...]], ModelConfig]] = {
    "llama": _llama,
    "mistral": _llama,
    "minicpm": _llama,
    "gemma3_text": _gemma3_text,
    "gemma3": _gemma3,
}


def _layer_kinds(fields: Fields, layers: int) -> tuple[LayerKind, ...]:
    if fields.has("layer_types"):
        names: dict[Any, LayerKind] = {name: kind for kind, name in _KIND_NAMES.items()}
        listed = fields.sequence("layer_types")
        if len(listed) != layers or not all(isinstance(name, str) and name in names for name in listed):
            raise fields.refuse("layer_types", f"{layers} of {', '.join(names)}")
        return tuple(names[name] for name in listed)
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    if pattern < 1:
        raise fields.refuse("sliding_window_pattern", "a positive number")
    return tuple("sliding" if (i + 1) % pattern else "full" for i in range(layers))


def _rope_section(fields: Fields, kind: LayerKind) -> tuple[float, Fields]:
    """(theta, scaling fields) of one layer kind, whichever dialect the file speaks."""
    # The kinds' defaults; only models with sliding layers ever ask for "sliding".
    sliding_model = fields.has("sliding_window") or fields.text("model_type", "") == "gemma3_text"
    default = 10_000.0 if kind == "sliding" or not sliding_model else 1_000_000.0
    if fields.has("rope_parameters"):
        section = fields.section("rope_parameters")
        if section.has(_KIND_NAMES[kind]):
            section = section.section(_KIND_NAMES[kind])
        return section.number("rope_theta", fields.number("rope_theta", default)), section
    if kind == "sliding":
        return fields.number("rope_local_base_freq", default), Fields({}, fields.where)
    scaling = fields.section("rope_scaling") if fields.has("rope_scaling") else Fields({}, fields.where)
    original = fields.values.get("original_max_position_embeddings")
    if original is not None:
        merged = {"original_max_position_embeddings": original, **scaling.values}
        scaling = Fields(merged, scaling.where)
    return fields.number("rope_theta", default), scaling


def _rope(theta: float, scaling: Fields, context: int) -> RopeConfig:
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
    if kind == "longrope":
        return _longrope(theta, scaling, context)
    raise CheckpointError(
        f"{scaling.where}: rope_type is {kind!r}; supported: default, linear, llama3, longrope"
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
