"""Gemma 4's assistants: drafters of a few layers that attend to their target's KV and own none.

Source: `gemma4_assistant` of transformers 5.24. Its own generate loop puts queries a position too far and
reads one key too many; this follows the model's training instead (see docs/concepts/speculation.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.graph import GraphLayer, ModelGraph
from ingle.contracts.model_config import LayerKind, ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.errors import ConfigError
from ingle.kernels import fused, ops
from ingle.layers.decoder_layer import DecoderLayer
from ingle.layers.feed_forward import NormedMLP
from ingle.layers.linear import Linear
from ingle.models.decoder import WeightReader


class CentroidHead:
    """Logits of the tokens in the clusters whose centroids fit best; all others get less than the least."""

    def __init__(self, centroids: Linear, ordering: mx.array, table: Linear, active: int) -> None:
        """`ordering` int32 [clusters, tokens of each]; `table` [vocab, hidden]."""
        self._centroids, self._ordering, self._table, self._active = centroids, ordering, table, active

    def __call__(self, hidden: mx.array) -> mx.array:
        rows = hidden.shape[0]
        scores = self._centroids(hidden)
        clusters = mx.argpartition(-scores, self._active - 1, axis=-1)[:, : self._active]
        ids = self._ordering[clusters].reshape(rows, -1)
        vectors = ops.embed(ids.reshape(-1), self._table.packed).reshape(rows, ids.shape[1], -1)
        chosen = mx.sum(vectors * hidden[:, None], axis=-1).astype(mx.float32)
        others = mx.broadcast_to(chosen.min(axis=-1, keepdims=True) - 1.0, (rows, self._ordering.size))
        return mx.put_along_axis(others, ids, chosen, axis=-1)


class Gemma4Assistant:
    """See `contracts.graph.AssistantGraph`."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, dtype: mx.Dtype, target: ModelConfig
    ) -> None:
        """Arrays are evaluated on the calling thread.

        Raises:
            CheckpointError: tensors that are missing or do not fit.
            ConfigError: the assistant is not one for this target.
        """
        assert config.assistant is not None
        check_pair(config, target)
        reader, size = WeightReader(source, config, dtype), config.hidden_size
        backbone = config.assistant.backbone_size

        def layer(index: int) -> DecoderLayer:
            name = f"model.layers.{index}"
            kv_index = last_owning(target, config.layer_kinds[index])
            return DecoderLayer(
                input_norm=reader.norm(f"{name}.input_layernorm", size),
                attention=reader.attention(f"{name}.self_attn", index, qk_norm=True, kv_index=kv_index),
                mixed_norm=reader.norm(f"{name}.post_attention_layernorm", size),
                feed_forward=NormedMLP(
                    reader.norm(f"{name}.pre_feedforward_layernorm", size), reader.mlp(f"{name}.mlp")
                ),
                output_norm=reader.norm(f"{name}.post_feedforward_layernorm", size),
                output_scale=reader.scalar(f"{name}.layer_scalar", 1),
            )

        self._layers = tuple(layer(index) for index in range(config.num_layers))
        self._pre = reader.linear("pre_projection", size, 2 * backbone)
        self._post = reader.linear("post_projection", backbone, size)
        self._norm = reader.norm("model.norm", size)
        table = reader.linear("model.embed_tokens", config.vocab_size, size)
        self._softcap = config.final_softcap
        self._table, self._head = table, None
        if (count := config.assistant.centroids) is not None:
            ordering = reader.integers(
                "masked_embedding.token_ordering", config.vocab_size, config.vocab_size
            )
            self._head = CentroidHead(
                reader.linear("masked_embedding.centroids", count, size),
                ordering.reshape(count, -1),
                table,
                config.assistant.active_centroids,
            )

    @property
    def layers(self) -> Sequence[GraphLayer]:
        return self._layers

    def fused(self, target: ModelGraph) -> object | None:
        embedding = target.embedding_parts
        if self._head is not None or not isinstance(embedding, fused.EmbeddingParts):
            return None
        return fused.fuse_drafter(
            embedding,
            fused.AssistantParts(
                pre=self._pre.packed,
                layers=[layer.fused for layer in self._layers],
                norm=self._norm.weight,
                eps=self._norm.eps,
                head=self._table.packed,
                softcap=self._softcap,
                post=self._post.packed,
            ),
        )

    def begin(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        return self._pre(mx.concatenate([embeddings, hidden], axis=-1))

    def norm(self, hidden: mx.array) -> mx.array:
        return self._norm(hidden)

    def logits(self, hidden: mx.array) -> mx.array:
        if self._head is not None:
            return self._head(hidden)
        return self._table(hidden, self._softcap).astype(mx.float32)

    def back(self, hidden: mx.array) -> mx.array:
        return self._post(hidden)


def last_owning(target: ModelConfig, kind: LayerKind) -> int:
    """The KV number of the target's last layer of a kind that owns KV."""
    return max(i for i in range(target.owning_layers) if target.layer_kinds[i] == kind)


def check_pair(config: ModelConfig, target: ModelConfig) -> None:
    """Raises ConfigError: the assistant does not fit the target; names what and both values."""
    assert config.assistant is not None
    own = set(target.layer_kinds[: target.owning_layers])
    pairs: list[tuple[str, object, object]] = [
        ("family", "gemma4", target.family),
        ("vocabulary", config.vocab_size, target.vocab_size),
        ("width", config.assistant.backbone_size, target.hidden_size),
    ]
    for kind in sorted(set(config.layer_kinds)):
        mine, other = config.heads_of(kind), target.heads_of(kind)
        pairs += [
            (f"{kind} layers with KV", True, kind in own),
            (f"KV heads of {kind} layers", mine.kv_heads, other.kv_heads),
            (f"head size of {kind} layers", mine.head_dim, other.head_dim),
        ]
    if "sliding" in config.layer_kinds:
        pairs.append(("window", config.window, target.window))
    for what, mine, other in pairs:
        if mine != other:
            raise ConfigError(f"the assistant is for a target of {what} {mine}, this one has {other}")
