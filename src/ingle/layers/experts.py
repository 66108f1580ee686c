"""Mixtures of experts: which experts a token takes, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ingle.kernels import ops
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """Softmax over all experts, of which the `active` likeliest are taken and weighted to a sum of 1."""

    project: Linear
    active: int
    norm: RMSNorm | None = None
    expert_scales: mx.array | None = None  # [experts]: multiplies the weights in the end

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """[tokens, hidden] -> (experts, weights), both [tokens, active], the likeliest first."""
        scores = self.project(x if self.norm is None else self.norm(x)).astype(mx.float32)
        weights = mx.softmax(scores, axis=-1, precise=True)
        chosen = mx.argsort(-weights, axis=-1)[:, : self.active]
        taken = mx.take_along_axis(weights, chosen, axis=-1)
        taken = taken / mx.sum(taken, axis=-1, keepdims=True)
        if self.expert_scales is not None:
            taken = taken * self.expert_scales[chosen]
        return chosen, taken.astype(x.dtype)


class Experts:
    """Gated MLPs of one shape. A token's result is the weighted sum of its experts', in their order."""

    def __init__(
        self,
        gate: Sequence[Linear],
        up: Sequence[Linear],
        down: Sequence[Linear],
        activation: ops.Activation,
    ) -> None:
        self._gate, self._up, self._down = ([linear.packed for linear in part] for part in (gate, up, down))
        self._activation: ops.Activation = activation

    def __call__(self, x: mx.array, chosen: mx.array, weights: mx.array) -> mx.array:
        """x [tokens, hidden], chosen and weights [tokens, active] -> [tokens, hidden]."""
        active = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = mx.argsort(flat)
        numbers = mx.arange(len(self._gate))[:, None]
        ends = mx.cumsum(mx.sum(flat[None] == numbers, axis=1).astype(mx.int32))
        rows = x[order // active]
        gate, up = (ops.expert_linear(rows, part, ends) for part in (self._gate, self._up))
        out = ops.expert_linear(ops.gated(gate, up, self._activation), self._down, ends)
        out = out[mx.argsort(order)].reshape(*chosen.shape, -1)
        total = out[:, 0] * weights[:, :1]
        for i in range(1, active):
            total = total + out[:, i] * weights[:, i : i + 1]
        return total
