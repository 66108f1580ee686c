"""A decoder-only graph from its parts, and the reader that takes those parts from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from ingle.cache.state import itemsize, make_state
from ingle.contracts.cache import KVKind, Retention, RowState, StateLayout
from ingle.contracts.encoder_config import EncodersConfig
from ingle.contracts.graph import GraphLayer
from ingle.contracts.media import Block
from ingle.contracts.model_config import ExpertsConfig, LayerKind, ModelConfig
from ingle.contracts.weights import Weight, WeightSource, part
from ingle.kernels import fused
from ingle.layers.attention import Attention
from ingle.layers.experts import Experts
from ingle.layers.linear import Embedding, Linear
from ingle.layers.mlp import GatedMLP
from ingle.layers.norm import RMSNorm
from ingle.layers.per_layer import PerLayerEmbedding
from ingle.layers.rope import Rope
from ingle.models.encoders import MAX_BLOCK, Encoders, encoder_bytes
from ingle.models.reading import TensorReader

_DRAFT_SLACK = 32  # positions that can be taken back after the window has moved on


class WeightReader(TensorReader):
    """Takes the parts of decoders."""

    def __init__(self, source: WeightSource, config: ModelConfig, dtype: mx.Dtype) -> None:
        super().__init__(source, dtype, config.norm_eps)
        self._config = config
        self._ropes: dict[LayerKind, Rope] = {}

    def mlp(self, name: str, *, widened: int = 1) -> GatedMLP:
        c = self._config
        hidden, inner, bias = c.hidden_size, widened * c.intermediate_size, c.mlp_bias
        return GatedMLP(
            self.linear(f"{name}.gate_proj", inner, hidden, bias=bias),
            self.linear(f"{name}.up_proj", inner, hidden, bias=bias),
            self.linear(f"{name}.down_proj", hidden, inner, bias=bias),
            c.activation,
        )

    def experts(self, name: str, stacked: str, experts: ExpertsConfig) -> Experts:
        """In one of three forms: each expert's matrices at `name`.N, as transformers has them for Qwen3;
        gate and up of all in one tensor at `name`, as for Gemma 4; each kind stacked at `stacked`, as MLX
        has them."""
        inner, hidden = experts.intermediate_size, self._config.hidden_size
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if self.source.has(f"{name}.gate_up_proj"):
            both = self._stacked(f"{name}.gate_up_proj", (experts.count, 2 * inner, hidden))
            down = self._stacked(f"{name}.down_proj", (experts.count, hidden, inner))
            weights = [
                [part(w, slice(0, inner)) for w in both],
                [part(w, slice(inner, None)) for w in both],
                down,
            ]
        elif self.source.has(f"{stacked}.gate_proj.weight"):
            weights = [
                self._stacked(f"{stacked}.{which}_proj.weight", (experts.count, *shape))
                for which, shape in shapes.items()
            ]
        else:
            linears = [
                [self.linear(f"{name}.{i}.{which}_proj", *shape) for i in range(experts.count)]
                for which, shape in shapes.items()
            ]
            return Experts(linears[0], linears[1], linears[2], self._config.activation)
        gate, up, down = ([Linear(w, self.dtype) for w in group] for group in weights)
        return Experts(gate, up, down, self._config.activation)

    def _stacked(self, name: str, shape: tuple[int, int, int]) -> list[Weight]:
        weight = self.take(name, *shape)
        return [part(weight, number) for number in range(shape[0])]

    def attention(
        self,
        name: str,
        index: int,
        *,
        qk_norm: bool = False,
        v_norm: bool = False,
        kv_index: int | None = None,
    ) -> Attention:
        """`v_norm`: values are normed too, without a factor. `kv_index`: of another model's KV."""
        c = self._config
        kind = c.layer_kinds[index]
        shape, owns = c.heads_of(kind), index < c.owning_layers
        dim = shape.head_dim
        q_size, kv_size = c.num_heads * dim, shape.kv_heads * dim

        def key_or_value(part: str) -> Linear:
            return self.linear(f"{name}.{part}_proj", kv_size, c.hidden_size, bias=c.attention_bias)

        return Attention(
            q=self.linear(f"{name}.q_proj", q_size, c.hidden_size, bias=c.attention_bias),
            k=key_or_value("k") if owns else None,
            v=key_or_value("v") if owns and not shape.values_are_keys else None,
            o=self.linear(f"{name}.o_proj", c.hidden_size, q_size, bias=c.output_bias),
            rope=self._rope(kind),
            heads=c.num_heads,
            kv_heads=shape.kv_heads,
            head_dim=dim,
            scale=c.attention_scale,
            kv_index=c.kv_index(index) if kv_index is None else kv_index,
            window=c.window if kind == "sliding" else None,
            softcap=c.attention_softcap,
            q_norm=self.norm(f"{name}.q_norm", dim) if qk_norm else None,
            k_norm=self.norm(f"{name}.k_norm", dim) if qk_norm and owns else None,
            v_norm=self.plain_norm(dim) if v_norm and owns else None,
        )

    def graph(
        self,
        make_layer: Callable[[int], GraphLayer],
        per_layer: PerLayerEmbedding | None = None,
        encoders: Encoders | None = None,
    ) -> DecoderGraph:
        """The whole decoder, with `make_layer(index)` for each of its layers."""
        c = self._config
        table = self.linear("model.embed_tokens", c.vocab_size, c.hidden_size)
        layers = [make_layer(index) for index in range(c.num_layers)]
        norm = self.norm("model.norm", c.hidden_size)
        head = table if c.tied_head else self.linear("lm_head", c.vocab_size, c.hidden_size)
        embedding = Embedding(table, c.embed_scale)
        return DecoderGraph(c, embedding, layers, norm, head, self.dtype, per_layer, encoders)

    def _rope(self, kind: LayerKind) -> Rope:
        if kind not in self._ropes:
            self._ropes[kind] = Rope(self._config.rope[kind], self._config.heads_of(kind).head_dim)
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
        per_layer: PerLayerEmbedding | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        self._config, self._dtype = config, dtype
        self._per_layer, self._encoders = per_layer, encoders
        self._embedding, self._norm, self._head = embedding, norm, head
        self._layers = tuple(layers)
        self._text_id = (
            None if config.encoders is None else _text_id_table(config.encoders, config.vocab_size)
        )

    @property
    def layers(self) -> Sequence[GraphLayer]:
        return self._layers

    @property
    def stateful_layers(self) -> int:
        return self._config.owning_layers

    @property
    def whole_block(self) -> int:
        encoders = self._config.encoders
        return MAX_BLOCK if encoders is not None and encoders.both_ways else 0

    def embed(self, ids: mx.array) -> mx.array:
        return self._embedding(self._text_ids(ids))

    @property
    def embedding_parts(self) -> fused.EmbeddingParts:
        embedding = self._embedding
        return fused.EmbeddingParts(
            table=embedding.as_linear.packed, scale=embedding.scale, text_ids=self._text_id
        )

    def encode(self, block: Block) -> mx.array:
        if self._encoders is None:
            raise ValueError("this model takes text only")
        features = self._encoders.encode(block).astype(self._dtype)
        mx.eval(features)
        return features

    def side_inputs(self, ids: mx.array, hidden: mx.array) -> mx.array | None:
        return None if self._per_layer is None else self._per_layer(self._text_ids(ids), hidden)

    def _text_ids(self, ids: mx.array) -> mx.array:
        """Soft tokens have no embedding of their own: the padding token's stands in."""
        return ids if self._text_id is None else self._text_id[ids]

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


def _text_id_table(encoders: EncodersConfig, vocab_size: int) -> mx.array:
    """int32 [vocab_size]: of each token the one whose embedding it has."""
    table = mx.arange(vocab_size, dtype=mx.int32)
    for token in encoders.soft_token_ids:
        table = mx.where(table == token, encoders.pad_token_id, table)
    mx.eval(table)
    return table


def layout_of(config: ModelConfig, itemsize: int) -> StateLayout:
    """One KV for each layer that owns one; sliding layers keep their window and a little slack."""
    retentions = {"full": Retention(), "sliding": Retention(config.window, slack=_DRAFT_SLACK)}
    kinds = {kind: config.heads_of(kind) for kind in set(config.layer_kinds)}
    return StateLayout.of(
        [
            KVKind(1, kinds[kind].kv_heads, kinds[kind].head_dim, retentions[kind])
            for kind in config.layer_kinds[: config.owning_layers]
        ],
        itemsize=itemsize,
    )


def step_bytes(config: ModelConfig, tokens: int, rows: int) -> int:
    """See `contracts.graph.ModelGraph.step_bytes`; an upper bound for float32 activations."""
    c = config
    shapes = [c.heads_of(kind) for kind in set(c.layer_kinds)]
    mixed = max(c.num_heads * shape.head_dim for shape in shapes)
    kv = max(shape.kv_heads * shape.head_dim for shape in shapes)
    dims = sum(shape.head_dim for shape in shapes)
    inner = c.intermediate_size * (2 if c.wide_shared_mlp else 1)
    sides = 0 if c.per_layer is None else c.num_layers * c.per_layer.width
    active = (
        0 if c.experts is None else c.experts.active * (3 * c.experts.intermediate_size + 2 * c.hidden_size)
    )
    # Activations in float32 and bfloat16, and their sums over groups (native/phases.h, `Prepared`).
    ready = 6.5 * (c.hidden_size + mixed + inner)
    scratch = ready + 4 * (mixed + 2 * kv) + 4 * c.hidden_size + 4 * dims
    # The arena's newest chunk is at most twice what is needed, the older ones half of it together.
    arena = 4 * scratch * tokens + (1 << 20)
    arrays = 4 * 4 * (c.hidden_size + 2 * sides + active) * tokens + 5 * 4 * c.vocab_size * rows
    encoding = 0 if c.encoders is None else encoder_bytes(c.encoders, c.hidden_size)
    return int(arena + arrays + encoding)
