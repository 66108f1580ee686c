"""A GGUF file as a weight source: Hugging Face names and row order, exact codes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import mlx.core as mx
import numpy as np

from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import Affine, Dense, Weight
from ingle.errors import CheckpointError
from ingle.weights.gguf import GGUFFile
from ingle.weights.gguf_blocks import to_weight

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = {
    "llama": _LLAMA_LAYER,
    "gemma3": {
        **_LLAMA_LAYER,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


class GGUFWeights:
    """See `contracts.weights.WeightSource`. Gemma's norms already hold 1 + w in these files."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file, self._config = file, config

    def names(self) -> Iterable[str]:
        layer = _LAYER[self._config.family]
        back = {theirs: ours for ours, theirs in _TOP.items()}
        back.update(
            {
                f"blk.{i}.{theirs}": f"model.layers.{i}.{ours}"
                for i in range(self._config.num_layers)
                for ours, theirs in layer.items()
            }
        )
        for name in self._file.tensors:
            stem, _, kind = name.rpartition(".")
            if stem in back:
                yield f"{back[stem]}.{kind}"

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._file.tensors

    def integers(self, name: str) -> mx.array:
        raise CheckpointError(f"{self._file.path}: tensor {name!r} is missing")

    def take(self, name: str) -> Weight:
        stored = self._stored_name(name)
        tensor = None if stored is None else self._file.tensors.get(stored)
        if stored is None or tensor is None:
            raise CheckpointError(f"{self._file.path}: tensor {stored or name!r} is missing")
        if tensor.type.decode is not None and len(tensor.shape) != 2:
            raise CheckpointError(
                f"{self._file.path}: tensor {stored!r} of shape {tensor.shape} is in {tensor.type.name} "
                "blocks, only matrices may be"
            )
        weight = to_weight(tensor.type, self._file.data(tensor), tensor.shape)
        heads = self._interleaved_heads(name)
        return weight if heads == 0 else _half_split(weight, heads, stored)

    def _stored_name(self, name: str) -> str | None:
        found = _LAYER_NAME.fullmatch(name)
        if found is None:
            stem, _, kind = name.rpartition(".")
            return f"{_TOP[stem]}.{kind}" if stem in _TOP else None
        theirs = _LAYER[self._config.family].get(found[2])
        return None if theirs is None else f"blk.{found[1]}.{theirs}.{found[3]}"

    def _interleaved_heads(self, name: str) -> int:
        """Llama-type files store the rows of q and k in pairs, for interleaved rotation."""
        if self._config.family == "llama":
            if ".q_proj." in name:
                return self._config.num_heads
            if ".k_proj." in name:
                return self._config.num_kv_heads
        return 0


def _half_split(weight: Weight, heads: int, stored: str) -> Weight:
    """Rows (head, pair, 2) back to (head, 2, pair): row 2i of a head was row i, row 2i + 1 row i + d/2."""
    rows = weight.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(f"tensor {stored!r} has {rows} rows, not a multiple of 2 x {heads} heads")
    order = mx.array(np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1))
    if isinstance(weight, Dense):
        return Dense(weight.values[order])
    codes, scales, biases = (a[order] for a in (weight.codes, weight.scales, weight.biases))
    return Affine(codes, scales, biases, weight.bits, weight.group_size)
