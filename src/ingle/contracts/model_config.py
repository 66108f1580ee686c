"""What a decoder's arithmetic needs to know, whatever dialect the checkpoint spoke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ingle.errors import CheckpointError

LayerKind: TypeAlias = Literal["full", "sliding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of one layer kind.

    `llama3` follows "Llama 3.1" (frequencies between two wavelengths are blended); `linear` divides
    every frequency by `factor`; `factors` divides each of the head_dim / 2 frequencies on its own
    (longrope), and `attention_factor` multiplies cos and sin.
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only text model. Sizes are counts of elements; ids are token ids."""

    family: str  # key of the model registry: "llama", "gemma3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    tied_head: bool
    layer_kinds: tuple[LayerKind, ...]  # one per layer
    rope: Mapping[LayerKind, RopeConfig]
    window: int | None = None  # sliding layers see this many positions, their own included
    attention_scale: float  # multiplies q.k
    attention_softcap: float | None = None
    final_softcap: float | None = None
    attention_bias: bool = False
    output_bias: bool = False  # bias of the attention output projection
    mlp_bias: bool = False
    embed_scale: float = 1.0  # Gemma: sqrt(hidden_size); MiniCPM: scale_emb
    residual_scale: float = 1.0  # MiniCPM: scale_depth / sqrt(num_layers)
    logit_scale: float = 1.0  # MiniCPM: dim_model_base / hidden_size, applied before the head
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default_factory=tuple[int, ...])

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "context_length",
        ):
            value = getattr(self, name)
            if not 1 <= value <= 2**31 - 1:
                raise CheckpointError(f"{name} is {value}, expected a positive 32-bit number")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim is {self.head_dim}, rotary embedding needs an even number")
        if len(self.layer_kinds) != self.num_layers:
            raise CheckpointError(
                f"layer_kinds names {len(self.layer_kinds)} layers, num_layers is {self.num_layers}"
            )
        if "sliding" in self.layer_kinds and (self.window is None or self.window < 1):
            raise CheckpointError(f"sliding layers need a window of at least 1, got {self.window}")
        for kind in set(self.layer_kinds):
            if kind not in self.rope:
                raise CheckpointError(f"no rotary embedding is given for {kind} layers")
