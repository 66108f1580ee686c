"""Linear layers and token embeddings over packed weights."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.weights import Weight
from ingle.kernels import ops


class Linear:
    """x [..., inputs] -> [..., outputs]. The weight is [outputs, inputs], dense or in codes."""

    def __init__(self, weight: Weight, dtype: mx.Dtype, bias: mx.array | None = None) -> None:
        self.packed = ops.pack_linear(weight, dtype, bias)
        mx.eval(self.packed.arrays)  # the checkpoint's own bytes can go now

    def __call__(self, x: mx.array, softcap: float | None = None) -> mx.array:
        """With `softcap`, the result r becomes softcap * tanh(r / softcap)."""
        return ops.linear(x, self.packed, softcap)


class Embedding:
    """Token ids to rows, times a constant. `as_linear` is the tied head."""

    def __init__(self, linear: Linear, scale: float = 1.0) -> None:
        self.as_linear = linear
        self.scale = scale

    def __call__(self, ids: mx.array) -> mx.array:
        return ops.embed(ids, self.as_linear.packed, self.scale)
