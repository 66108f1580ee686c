"""Hugging Face `config.json` dialects to our configuration.

transformers 5 writes rotary settings as `rope_parameters`, flat or by layer type; older files use
`rope_theta`, `rope_scaling` and `rope_local_base_freq`. Both give the same `ModelConfig`. Defaults
for absent keys are those of transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ingle.contracts.model_config import ExpertsConfig, ModelConfig
from ingle.weights import hf_gemma4
from ingle.weights.fields import Fields
from ingle.weights.hf_shared import KIND_NAMES, common, layer_kinds, rope_of, rope_section


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


def _llama(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    shared = common(fields, eos_token_ids)
    _require_silu(fields)
    if fields.has("sliding_window"):
        raise fields.refuse("sliding_window", "null for this model type")
    context = fields.integer("max_position_embeddings", 2048)
    rope = rope_of(*rope_section(fields, "full"), context)
    if rope.kind == "factors":
        context = min(context, rope.original_context_length)
    head_dim = fields.integer("head_dim", shared["hidden_size"] // shared["num_heads"])
    minicpm = fields.text("model_type") == "minicpm"
    scales: dict[str, Any] = {}
    if minicpm:
        scales = {
            "embed_scale": fields.number("scale_emb", 1.0),
            "residual_scale": fields.number("scale_depth", 1.0) / math.sqrt(shared["num_layers"]),
            "logit_scale": fields.number("dim_model_base", 1.0) / shared["hidden_size"],
        }
    bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        **shared,
        **scales,
        family="llama",
        head_dim=head_dim,
        context_length=context,
        activation="silu",
        tied_head=fields.boolean("tie_word_embeddings", minicpm),
        layer_kinds=("full",) * shared["num_layers"],
        rope={"full": rope},
        attention_scale=head_dim**-0.5,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def _require_silu(fields: Fields) -> None:
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.refuse("hidden_act", "silu")


def _qwen3(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    shared = common(fields, eos_token_ids)
    _require_silu(fields)
    if fields.boolean("use_sliding_window", False):
        raise fields.refuse("use_sliding_window", "false")
    context = fields.integer("max_position_embeddings", 32_768)
    head_dim = fields.integer("head_dim", 128)
    bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        **shared,
        family="qwen3",
        head_dim=head_dim,
        context_length=context,
        activation="silu",
        tied_head=fields.boolean("tie_word_embeddings", False),
        layer_kinds=("full",) * shared["num_layers"],
        rope={"full": rope_of(*rope_section(fields, "full"), context)},
        attention_scale=head_dim**-0.5,
        attention_bias=bias,
        output_bias=bias,
        experts=_qwen3_experts(fields) if fields.text("model_type") == "qwen3_moe" else None,
    )


def _qwen3_experts(fields: Fields) -> ExpertsConfig:
    """transformers 5 writes `num_local_experts`, older files `num_experts`."""
    if fields.integer("decoder_sparse_step", 1) != 1:
        raise fields.refuse("decoder_sparse_step", "1: experts in every layer")
    if fields.has("mlp_only_layers") and fields.sequence("mlp_only_layers"):
        raise fields.refuse("mlp_only_layers", "none: experts in every layer")
    if not fields.boolean("norm_topk_prob", False):
        raise fields.refuse("norm_topk_prob", "true")
    return ExpertsConfig(
        count=fields.integer("num_local_experts", fields.integer("num_experts", 128)),
        active=fields.integer("num_experts_per_tok", 8),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
    )


def _gemma3_text(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    shared = common(fields, eos_token_ids)
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
        **shared,
        family="gemma3",
        head_dim=fields.integer("head_dim", 256),
        context_length=context,
        activation="gelu_tanh",
        tied_head=fields.boolean("tie_word_embeddings", True),
        layer_kinds=layer_kinds(fields, shared["num_layers"]),
        rope={kind: rope_of(*rope_section(fields, kind), context) for kind in KIND_NAMES},
        window=fields.integer("sliding_window", 4096),
        attention_scale=scalar**-0.5,
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        attention_bias=bias,
        output_bias=bias,
        embed_scale=math.sqrt(shared["hidden_size"]),
    )


def _gemma3(fields: Fields, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    """The vision-language wrapper: its text part."""
    own = fields.token_ids("eos_token_id")
    return _gemma3_text(fields.section("text_config"), (*own, *eos_token_ids))


_READERS: Mapping[str, Callable[[Fields, tuple[int, ...]], ModelConfig]] = {
    "llama": _llama,
    "mistral": _llama,
    "minicpm": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
    "gemma3_text": _gemma3_text,
    "gemma3": _gemma3,
    **hf_gemma4.READERS,
}
