"""Tensors out of a checkpoint, checked against what the configuration says."""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from ingle.contracts.weights import Dense, Weight, WeightSource
from ingle.errors import CheckpointError
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm


class TensorReader:
    """Takes named parts that all models are made of. `eps` is that of norms.

    Every method raises CheckpointError for a tensor that is missing or of another shape; it names the
    tensor and both shapes. Arrays are evaluated.
    """

    def __init__(self, source: WeightSource, dtype: mx.Dtype, eps: float) -> None:
        self.source, self.dtype, self.eps = source, dtype, eps

    def take(self, name: str, *shape: int) -> Weight:
        weight = self.source.take(name)
        if tuple(weight.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(weight.shape)}, the configuration says {shape}"
            )
        return weight

    def tensor(self, name: str, *shape: int) -> mx.array:
        """Raises CheckpointError: quantised, too."""
        weight = self.take(name, *shape)
        if not isinstance(weight, Dense):
            raise CheckpointError(f"tensor {name!r} is quantised, expected dense values")
        values = weight.values.astype(self.dtype)
        mx.eval(values)
        return values

    def scalar(self, name: str, *shape: int) -> float:
        """A tensor of one number: without a shape, or as many ones as it has dimensions."""
        return cast("float", self.tensor(name, *shape).item())

    def integers(self, name: str, size: int, below: int) -> mx.array:
        """int32 [size]. Raises CheckpointError: a number outside [0, below), too."""
        values = self.source.integers(name)
        if tuple(values.shape) != (size,):
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(values.shape)}, the configuration says {(size,)}"
            )
        low, high = cast("int", values.min().item()), cast("int", values.max().item())
        if low < 0 or high >= below:
            raise CheckpointError(f"tensor {name!r} holds {low} to {high}, expected 0 to {below - 1}")
        values = values.astype(mx.int32)
        mx.eval(values)
        return values

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """The matrix `name`.weight [outputs, inputs], with `name`.bias [outputs] when asked for."""
        weight = self.take(f"{name}.weight", outputs, inputs)
        return Linear(weight, self.dtype, self.tensor(f"{name}.bias", outputs) if bias else None)

    def norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self.tensor(f"{name}.weight", size), self.eps)

    def plain_norm(self, size: int) -> RMSNorm:
        """One without a learned factor."""
        return RMSNorm(mx.ones(size, self.dtype), self.eps)
