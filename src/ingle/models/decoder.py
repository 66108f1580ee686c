"""A decoder-only graph from its parts, and the reader that takes those parts from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from ingle.cache.state import itemsize, make_state
from ingle.contracts.cache import KVKind, Retention, RowState, StateLayout
from ingle.contracts.graph import GraphLayer
from ingle.contracts.model_config import LayerKind, ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.errors import CheckpointError
from ingle.layers.attention import Attention
from ingle.layers.linear import Embedding, Linear, dense_vector
from ingle.layers.mlp import GatedMLP
from ingle.layers.norm import RMSNorm
from ingle.layers.rope import Rope

_DRAFT_SLACK = 32  # positions that can be taken back after the window has moved on


class WeightReader:
    """Takes named tensors out of a checkpoint, checks their shapes against the configuration."""

    def __init__(self, source: WeightSource, config: ModelConfig, dtype: mx.Dtype) -> None:
        self._source, self._config, self._dtype = source, config, dtype
        self._ropes: dict[LayerKind, Rope] = {}

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """The matrix `name`.weight [outputs, inputs], with `name`.bias [outputs] when asked for.

        Raises:
            CheckpointError: missing, or another shape than the configuration says.
        """
        weight = self._source.take(f"{name}.weight")
        if tuple(weight.shape) != (outputs, inputs):
            raise CheckpointError(
                f"tensor {name + '.weight'!r} has shape {tuple(weight.shape)}, "
                f"the configuration says ({outputs}, {inputs})"
            )
        return Linear(weight, self._dtype, self._vector(f"{name}.bias", outputs) if bias else None)

    def norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self._vector(f"{name}.weight", size), self._config.norm_eps)

    def mlp(self, name: str) -> GatedMLP:
        c = self._config
        hidden, inner, bias = c.hidden_size, c.intermediate_size, c.mlp_bias
        return GatedMLP(
            self.linear(f"{name}.gate_proj", inner, hidden, bias=bias),
            self.linear(f"{name}.up_proj", inner, hidden, bias=bias),
            self.linear(f"{name}.down_proj", hidden, inner, bias=bias),
            c.activation,
        )

    def attention(self, name: str, index: int, *, qk_norm: bool = False) -> Attention:
        c = self._config
        kind = c.layer_kinds[index]
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        return Attention(
            q=self.linear(f"{name}.q_proj", q_size, c.hidden_size, bias=c.attention_bias),
            k=self.linear(f"{name}.k_proj", kv_size, c.hidden_size, bias=c.attention_bias),
            v=self.linear(f"{name}.v_proj", kv_size, c.hidden_size, bias=c.attention_bias),
            o=self.linear(f"{name}.o_proj", c.hidden_size, q_size, bias=c.output_bias),
            rope=self._rope(kind),
            heads=c.num_heads,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            scale=c.attention_scale,
            kv_index=index,
            window=c.window if kind == "sliding" else None,
            softcap=c.attention_softcap,
            q_norm=self.norm(f"{name}.q_norm", c.head_dim) if qk_norm else None,
            k_norm=self.norm(f"{name}.k_norm", c.head_dim) if qk_norm else None,
        )

    def graph(self, make_layer: Callable[[int], GraphLayer]) -> DecoderGraph:
        """The whole decoder, with `make_layer(index)` for each of its layers."""
        c = self._config
        table = self.linear("model.embed_tokens", c.vocab_size, c.hidden_size)
        layers = [make_layer(index) for index in range(c.num_layers)]
        norm = self.norm("model.norm", c.hidden_size)
        head = table if c.tied_head else self.linear("lm_head", c.vocab_size, c.hidden_size)
        return DecoderGraph(c, Embedding(table, c.embed_scale), layers, norm, head, self._dtype)

    def _vector(self, name: str, size: int) -> mx.array:
        return dense_vector(self._source.take(name), name, size, self._dtype)

    def _rope(self, kind: LayerKind) -> Rope:
        if kind not in self._ropes:
            self._ropes[kind] = Rope(self._config.rope[kind], self._config.head_dim)
        return self._ropes[kind]


class DecoderGraph:
    """See `contracts.graph.ModelGraph`."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding,
        layers: Sequence[GraphLayer],
        norm: RMSNorm,
        head: Linear,
        dtype: mx.Dtype,
    ) -> None:
        self._config, self._dtype = config, dtype
        self._embedding, self._norm, self._head = embedding, norm, head
        self._layers = tuple(layers)

    @property
    def layers(self) -> Sequence[GraphLayer]:
        return self._layers

    def embed(self, ids: mx.array) -> mx.array:
        return self._embedding(ids)

    def side_inputs(self, ids: mx.array, hidden: mx.array) -> mx.array | None:
        return None

    def norm(self, hidden: mx.array) -> mx.array:
        return self._norm(hidden)

    def logits(self, hidden: mx.array) -> mx.array:
        if self._config.logit_scale != 1.0:
            hidden = hidden * self._config.logit_scale
        return self._head(hidden, self._config.final_softcap).astype(mx.float32)

    @property
    def layout(self) -> StateLayout:
        return layout_of(self._config, itemsize(self._dtype))

    def make_state(self, rows: int) -> RowState:
        return make_state(self.layout, rows, self._dtype)

    @property
    def step_bytes(self) -> Callable[[int, int], int]:
        return partial(step_bytes, self._config)


def layout_of(config: ModelConfig, itemsize: int) -> StateLayout:
    """One KV for each layer; sliding layers keep their window and a little slack."""
    retentions = {"full": Retention(), "sliding": Retention(config.window, slack=_DRAFT_SLACK)}
    return StateLayout.of(
        [KVKind(1, config.num_kv_heads, config.head_dim, retentions[kind]) for kind in config.layer_kinds],
        itemsize=itemsize,
    )


def step_bytes(config: ModelConfig, tokens: int, rows: int) -> int:
    """See `contracts.graph.ModelGraph.step_bytes`; an upper bound for float32 activations."""
    c = config
    mixed, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    # Activations in float32 and bfloat16, and their sums over groups (native/phases.h, `Prepared`).
    ready = 6.5 * (c.hidden_size + mixed + c.intermediate_size)
    scratch = ready + 4 * (mixed + 2 * kv) + 4 * c.hidden_size + 4 * c.head_dim * len(c.rope)
    # The arena's newest chunk is at most twice what is needed, the older ones half of it together.
    arena = 4 * scratch * tokens + (1 << 20)
    return int(arena + 4 * 4 * c.hidden_size * tokens + 5 * 4 * c.vocab_size * rows)
