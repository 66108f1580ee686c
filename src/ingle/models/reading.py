"""Tensors out of a checkpoint, checked against what the configuration says."""

from __future__ import annotations

from ingle.contracts.weights import Weight, WeightSource
from ingle.errors import CheckpointError


def take_shaped(source: WeightSource, name: str, *shape: int) -> Weight:
    """Raises CheckpointError: missing, or of another shape; names the tensor and both shapes."""
    weight = source.take(name)
    if tuple(weight.shape) != shape:
        raise CheckpointError(
            f"tensor {name!r} has shape {tuple(weight.shape)}, the configuration says {shape}"
        )
    return weight
