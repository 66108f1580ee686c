"""The gated MLP: down(activation(gate(x)) * up(x))."""

from __future__ import annotations

import mlx.core as mx

from ingle.kernels import ops
from ingle.layers.linear import Linear


class GatedMLP:
    """[..., hidden] -> [..., hidden] through `intermediate` gated channels (Shazeer, 2020)."""

    def __init__(self, gate: Linear, up: Linear, down: Linear, activation: ops.Activation) -> None:
        self.gate, self.up, self.down = gate, up, down
        self.activation: ops.Activation = activation

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(ops.gated_linear(x, self.gate.packed, self.up.packed, self.activation))
