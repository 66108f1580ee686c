"""Takes the parts of encoders out of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.weights import Dense, WeightSource
from ingle.errors import CheckpointError
from ingle.layers.clipped import Bounds, ClippedLinear
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm
from ingle.models.reading import TensorReader


class TowerReader(TensorReader):
    """`clipped`: linears bring bounds."""

    def __init__(self, source: WeightSource, dtype: mx.Dtype, eps: float, clipped: bool = False) -> None:
        super().__init__(source, dtype, eps)
        self._clipped = clipped

    def kernel(self, name: str, outputs: int, inputs: int, *sides: int) -> mx.array:
        """A convolution's weight as [outputs, *sides, inputs], whichever way round it is stored.

        The reference stores [outputs, inputs, *sides], MLX's converters what we want.
        """
        weight = self.source.take(name)
        stored = tuple(weight.shape)
        if isinstance(weight, Dense) and stored == (outputs, inputs, *sides):
            values = mx.moveaxis(weight.values, 1, -1).astype(self.dtype)
        elif isinstance(weight, Dense) and stored == (outputs, *sides, inputs):
            values = weight.values.astype(self.dtype)
        else:
            raise CheckpointError(
                f"tensor {name!r} has shape {stored}, expected dense {(outputs, inputs, *sides)}"
            )
        values = mx.contiguous(values)
        mx.eval(values)
        return values

    def clipped_linear(self, name: str, outputs: int, inputs: int) -> ClippedLinear:
        linear = self.linear(f"{name}.linear", outputs, inputs)
        if not self._clipped:
            return ClippedLinear(linear)
        return ClippedLinear(linear, self._bounds(f"{name}.input"), self._bounds(f"{name}.output"))

    def _bounds(self, name: str) -> Bounds | None:
        low, high = (self.scalar(f"{name}_{end}") for end in ("min", "max"))
        if math.isnan(low) or math.isnan(high) or low > high:
            raise CheckpointError(f"the bounds {name}_min, {name}_max are {low}, {high}")
        return None if math.isinf(low) and math.isinf(high) else Bounds(low, high)

    def projector(self, name: str, outputs: int, inputs: int) -> Projector:
        return Projector(
            self.plain_norm(inputs), self.linear(f"{name}.embedding_projection", outputs, inputs)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Projector:
    """linear(norm(x)), the norm without a factor: from an encoder's width to the decoder's."""

    norm: RMSNorm
    linear: Linear

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(self.norm(x))
