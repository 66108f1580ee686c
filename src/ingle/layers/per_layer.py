"""Gemma's per-layer embeddings: each layer gets a few numbers of its own about each token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from ingle.kernels import ops
from ingle.layers.linear import Embedding, Linear
from ingle.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerEmbedding:
    """(norm(project(embedding) / sqrt(hidden)) + table[token]) / sqrt(2), for all layers at once.

    The first part is about what stands there, soft tokens included; the second about the token's id.
    """

    table: Embedding  # rows of layers * width
    project: Linear
    norm: RMSNorm  # over width
    layers: int
    width: int

    def __call__(self, ids: mx.array, hidden: mx.array) -> mx.array:
        """ids [tokens], their embeddings [tokens, hidden] -> [tokens, layers, width]."""
        shape = (ids.shape[0], self.layers, self.width)
        context = self.norm((self.project(hidden) * (hidden.shape[-1] ** -0.5)).reshape(shape))
        return (context + self.table(ids).reshape(shape)) * math.sqrt(0.5)


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerInput:
    """norm(project(gelu(gate(x)) * side)): how one layer takes its part."""

    gate: Linear
    project: Linear
    norm: RMSNorm

    def __call__(self, hidden: mx.array, side: mx.array) -> mx.array:
        """hidden [tokens, hidden], side [tokens, width] -> what is added to hidden."""
        return self.norm(self.project(ops.gated(self.gate(hidden), side, "gelu_tanh")))
