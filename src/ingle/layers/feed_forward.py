"""The second branch of a decoder layer: what the hidden states go through by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ingle.layers.experts import Experts, Router
from ingle.layers.mlp import GatedMLP
from ingle.layers.norm import RMSNorm


class FeedForward(Protocol):
    def __call__(self, hidden: mx.array) -> mx.array:
        """[tokens, hidden] -> what is added to it, [tokens, hidden]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NormedMLP:
    """mlp(norm(x))"""

    norm: RMSNorm
    mlp: GatedMLP

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.mlp(self.norm(hidden))


@dataclass(frozen=True, slots=True, eq=False)
class NormedExperts:
    """experts(norm(x)), chosen by norm(x) too (Qwen3)."""

    norm: RMSNorm
    router: Router
    experts: Experts

    def __call__(self, hidden: mx.array) -> mx.array:
        x = self.norm(hidden)
        return self.experts(x, *self.router(x))


@dataclass(frozen=True, slots=True, eq=False)
class DenseAndExperts:
    """An MLP and experts side by side (Gemma 4): dense_norm(mlp(x)) + experts_norm(experts(norm(x))).

    The router looks at x itself.
    """

    dense: NormedMLP
    dense_norm: RMSNorm
    router: Router
    norm: RMSNorm
    experts: Experts
    experts_norm: RMSNorm

    def __call__(self, hidden: mx.array) -> mx.array:
        mixed = self.experts(self.norm(hidden), *self.router(hidden))
        return self.dense_norm(self.dense(hidden)) + self.experts_norm(mixed)
