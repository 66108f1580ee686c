"""GGUF metadata to our configuration and text assets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingle.contracts.model_config import LayerKind, ModelConfig, RopeConfig
from ingle.contracts.request import Pooling
from ingle.contracts.text_assets import TextAssets
from ingle.errors import CheckpointError
from ingle.weights.fields import Fields

ARCHITECTURES = ("llama", "minicpm", "gemma3")
_END_TOKENS = ("eos", "eot", "eom")
_GEMMA_LOCAL_THETA = 10_000.0  # older files do not carry it; transformers' default for sliding layers


def model_config(
    metadata: Mapping[str, Any], where: str, *, tied_head: bool, rope_factors: tuple[float, ...]
) -> ModelConfig:
    """`rope_factors` are the values of a `rope_freqs.weight` tensor, empty when there is none.

    Raises:
        CheckpointError: an architecture we do not have, or a value that is missing or out of range.
    """
    general = Fields(metadata, where)
    arch = general.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise general.refuse("general.architecture", ", ".join(ARCHITECTURES))
    prefix = arch + "."
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, where)
    layers, hidden = fields.integer("block_count"), fields.integer("embedding_length")
    heads = _same_for_all(fields, "attention.head_count")
    kv_heads = _same_for_all(fields, "attention.head_count_kv", default=heads)
    head_dim = fields.integer("attention.key_length", _divide(hidden, heads, where))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.refuse("attention.value_length", f"the key length, {head_dim}")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.refuse("rope.dimension_count", f"the head size, {head_dim}")
    if not 1 <= layers <= 4096:
        raise fields.refuse("block_count", "1 to 4096")
    rope = _rope(fields, rope_factors)
    gemma = arch == "gemma3"
    window = fields.optional_integer("attention.sliding_window") if gemma else None
    kinds = _layer_kinds(fields, layers) if window else ("full",) * layers
    local = RopeConfig(theta=fields.number("rope.freq_base_swa", _GEMMA_LOCAL_THETA))
    tokens = metadata.get("tokenizer.ggml.tokens")
    minicpm = arch == "minicpm"
    return ModelConfig(
        family="gemma3" if gemma else "llama",
        vocab_size=len(tokens) if isinstance(tokens, list) else fields.integer("vocab_size"),  # pyright: ignore[reportUnknownArgumentType]
        hidden_size=hidden,
        intermediate_size=_same_for_all(fields, "feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if gemma else "silu",
        tied_head=tied_head,
        layer_kinds=kinds,
        rope={"full": rope, "sliding": local} if gemma else {"full": rope},
        window=window,
        attention_scale=fields.number("attention.scale", head_dim**-0.5),
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        embed_scale=hidden**0.5 if gemma else fields.number("embedding_scale", 12.0 if minicpm else 1.0),
        residual_scale=fields.number("residual_scale", 1.4 / layers**0.5 if minicpm else 1.0),
        logit_scale=_logit_scale(fields, hidden) if minicpm else 1.0,
        bos_token_id=general.optional_integer("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_end_ids(metadata, where),
    )


_POOLINGS: Mapping[Any, Pooling] = {1: "mean", 3: "last"}  # of llama.cpp's pooling types


def text_assets(metadata: Mapping[str, Any], where: str) -> TextAssets:
    """Raises CheckpointError: the file has no tokenizer, or its parts have wrong types."""
    fields = Fields(metadata, where)
    tokens = fields.sequence("tokenizer.ggml.tokens")
    if not all(isinstance(t, str) for t in tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens holds something other than strings")
    special: dict[str, str] = {}
    for name in ("bos", "eos", "unknown", "padding"):
        index = fields.optional_integer(f"tokenizer.ggml.{name}_token_id")
        if index is not None and 0 <= index < len(tokens):
            short = {"unknown": "unk", "padding": "pad"}.get(name, name)
            special[f"{short}_token"] = tokens[index]
    template = fields.values.get("tokenizer.chat_template")
    return TextAssets(
        gguf={k: v for k, v in metadata.items() if k.startswith("tokenizer.")},
        bos_token_id=fields.optional_integer("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_end_ids(metadata, where),
        chat_template=template if isinstance(template, str) else None,
        special_tokens=special,
        pooling=_POOLINGS.get(metadata.get(f"{metadata.get('general.architecture')}.pooling_type")),
        # Files without the key follow their tokenizer kind: SentencePiece models begin with bos.
        add_bos=fields.boolean(
            "tokenizer.ggml.add_bos_token", fields.text("tokenizer.ggml.model") in ("llama", "gemma4")
        ),
    )


def _end_ids(metadata: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Every id that ends an answer: the declared ones, and well-known turn ends by their text."""
    fields = Fields(metadata, where)
    ids = [fields.optional_integer(f"tokenizer.ggml.{name}_token_id") for name in _END_TOKENS]
    found = {i for i in ids if i is not None}
    tokens = metadata.get("tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(kinds, list):
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if kind == 3 and token in ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>"):
                found.add(index)
    return tuple(sorted(found))


def _layer_kinds(fields: Fields, layers: int) -> tuple[LayerKind, ...]:
    """Every n-th layer is full (Gemma 3: 6th), or one flag for each layer says whether it slides."""
    key = "attention.sliding_window_pattern"
    if isinstance(fields.values.get(key), list):
        flags = fields.sequence(key)
        if len(flags) != layers or not all(isinstance(flag, bool) for flag in flags):
            raise fields.refuse(key, f"{layers} flags")
        return tuple("sliding" if flag else "full" for flag in flags)
    pattern = fields.integer(key, 6)
    if pattern < 1:
        raise fields.refuse(key, "a positive number")
    return tuple("sliding" if (i + 1) % pattern else "full" for i in range(layers))


def _rope(fields: Fields, factors: tuple[float, ...]) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10_000.0)
    if factors:
        return RopeConfig(theta=theta, kind="factors", factors=factors)
    kind = fields.text("rope.scaling.type", "none")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if kind == "none" or factor == 1.0:
        return RopeConfig(theta=theta)
    if kind != "linear":
        raise fields.refuse("rope.scaling.type", "none, linear, and llama3 through rope_freqs.weight")
    return RopeConfig(theta=theta, kind="linear", factor=factor)


def _logit_scale(fields: Fields, hidden: int) -> float:
    # Converters store hidden_size / dim_model_base, by which hidden states are divided.
    return 1.0 / fields.number("logit_scale", hidden / 256)


def _same_for_all(fields: Fields, key: str, default: int | None = None) -> int:
    value = fields.values.get(key)
    if isinstance(value, list):
        if len(set(value)) != 1:  # pyright: ignore[reportUnknownArgumentType]
            raise fields.refuse(key, "one number for all layers")
        return Fields({key: value[0]}, fields.where).integer(key)
    return fields.integer(key, default)


def _divide(hidden: int, heads: int, where: str) -> int:
    if heads < 1 or hidden < heads:
        raise CheckpointError(f"{where}: attention.head_count is {heads}, embedding_length {hidden}")
    return hidden // heads
