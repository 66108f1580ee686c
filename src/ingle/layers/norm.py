"""RMS normalisation with a learned factor."""

from __future__ import annotations

import mlx.core as mx

from ingle.kernels import ops


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` is the effective factor."""

    def __init__(self, weight: mx.array, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return ops.rms_norm(x, self.weight, self.eps)
