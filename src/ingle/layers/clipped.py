"""Linear layers that clamp what goes in and comes out to bounds of the checkpoint (Gemma 4's towers)."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ingle.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class Bounds:
    low: float
    high: float

    def __call__(self, x: mx.array) -> mx.array:
        return mx.clip(x, self.low, self.high)


@dataclass(frozen=True, slots=True, eq=False)
class ClippedLinear:
    """x [..., inputs] -> [..., outputs]; without bounds a plain linear layer."""

    linear: Linear
    inputs: Bounds | None = None
    outputs: Bounds | None = None

    def __call__(self, x: mx.array) -> mx.array:
        out = self.linear(x if self.inputs is None else self.inputs(x))
        return out if self.outputs is None else self.outputs(out)
