"""What a decoder's arithmetic needs to know, whatever dialect the checkpoint spoke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ingle.contracts.encoder_config import EncodersConfig
from ingle.errors import CheckpointError

LayerKind: TypeAlias = Literal["full", "sliding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of one layer kind.

    `llama3` follows "Llama 3.1" (frequencies between two wavelengths are blended); `linear` divides
    every frequency by `factor`; `factors` divides each of the head_dim / 2 frequencies on its own
    (longrope), and `attention_factor` multiplies cos and sin; `proportional` (Gemma 4) turns only the
    first `rotated` part of the pairs, each by the frequency it would have if all turned.
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "factors", "proportional"] = "default"
    rotated: float = 1.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Key and value heads of one layer kind."""

    kv_heads: int
    head_dim: int
    values_are_keys: bool = False  # no value projection: values are the keys before norm and rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of gated MLPs of which each token takes `active`."""

    count: int
    active: int
    intermediate_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.active <= self.count <= 4096 or self.intermediate_size < 1:
            raise CheckpointError(
                f"{self.active} of {self.count} experts of {self.intermediate_size} channels make no sense"
            )


@dataclass(frozen=True, slots=True)
class PerLayerConfig:
    """Gemma's per-layer embeddings: a second table gives each layer `width` numbers of each token."""

    width: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantConfig:
    """What makes a decoder a drafter that lives on its target's hidden states and KV."""

    backbone_size: int  # of the target's hidden states
    centroids: int | None = None  # the head looks at the tokens of some clusters only; None: at all
    active_centroids: int = 0  # so many


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
    full_heads: HeadShape | None = None  # of full layers, where they differ from `num_kv_heads`, `head_dim`
    shared_kv_layers: int = 0  # the last so many read the KV of the last layer of their kind before them
    wide_shared_mlp: bool = False  # those layers' MLPs are twice as wide
    per_layer: PerLayerConfig | None = None
    experts: ExpertsConfig | None = None
    encoders: EncodersConfig | None = None  # None: text only
    assistant: AssistantConfig | None = None  # all layers read the target's KV; None: a model of its own
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
        for kind in set(self.layer_kinds):
            shape = self.heads_of(kind)
            if shape.kv_heads < 1 or self.num_heads % shape.kv_heads:
                raise CheckpointError(
                    f"num_heads {self.num_heads} is not a multiple of num_kv_heads {shape.kv_heads} ({kind})"
                )
            if shape.head_dim < 2 or shape.head_dim % 2:
                raise CheckpointError(
                    f"head_dim is {shape.head_dim} in {kind} layers, rotary embedding needs an even number"
                )
        if len(self.layer_kinds) != self.num_layers:
            raise CheckpointError(
                f"layer_kinds names {len(self.layer_kinds)} layers, num_layers is {self.num_layers}"
            )
        if "sliding" in self.layer_kinds and (self.window is None or self.window < 1):
            raise CheckpointError(f"sliding layers need a window of at least 1, got {self.window}")
        for kind in set(self.layer_kinds):
            if kind not in self.rope:
                raise CheckpointError(f"no rotary embedding is given for {kind} layers")
        if self.assistant is not None:
            self._check_assistant(self.assistant)
            return
        if not 0 <= self.shared_kv_layers < self.num_layers:
            raise CheckpointError(
                f"{self.shared_kv_layers} layers share KV, the model has {self.num_layers} layers"
            )
        own = self.layer_kinds[: self.owning_layers]
        missing = set(self.layer_kinds) - set(own)
        if missing:
            raise CheckpointError(
                f"the last {self.shared_kv_layers} layers share KV, no {missing.pop()} layer before has any"
            )

    def _check_assistant(self, assistant: AssistantConfig) -> None:
        if self.shared_kv_layers != self.num_layers:
            raise CheckpointError(
                f"an assistant's layers own no KV: num_kv_shared_layers is {self.shared_kv_layers} of "
                f"{self.num_layers}"
            )
        if assistant.backbone_size < 1:
            raise CheckpointError(f"backbone_hidden_size is {assistant.backbone_size}")
        count, active = assistant.centroids, assistant.active_centroids
        if count is not None and (count < 1 or self.vocab_size % count or not 1 <= active <= count):
            raise CheckpointError(
                f"{active} of {count} centroids make no sense for a vocabulary of {self.vocab_size}"
            )

    def heads_of(self, kind: LayerKind) -> HeadShape:
        if kind == "full" and self.full_heads is not None:
            return self.full_heads
        return HeadShape(self.num_kv_heads, self.head_dim)

    @property
    def owning_layers(self) -> int:
        """The first so many layers own KV; KV number n is that of layer n."""
        return self.num_layers - self.shared_kv_layers

    def kv_index(self, layer: int) -> int:
        """KV number that a layer writes, or reads where it owns none."""
        if layer < self.owning_layers:
            return layer
        kind = self.layer_kinds[layer]
        return max(i for i in range(self.owning_layers) if self.layer_kinds[i] == kind)
