"""Rotary position embedding: from a configuration to one inverse frequency for each pair.

Sources: RoFormer (Su et al., 2021) for the frequencies; "llama3" blending as in Meta's Llama 3.1
reference; "factors" is LongRoPE (Ding et al., 2024) with its divisors given; "proportional" as in
DeepMind's Gemma 4, where the pairs that do not turn have frequency 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.model_config import RopeConfig
from ingle.errors import CheckpointError
from ingle.kernels import fused, ops


class Rope:
    """Rotates [rows, heads, length, head_dim] by positions that start at each row's offset."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        self._inv_freq = inverse_frequencies(config, head_dim)
        self._scale = config.attention_factor
        mx.eval(self._inv_freq)
        self.fused = fused.fused_rope(self._inv_freq, self._scale)

    def __call__(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        return ops.rope(x, offsets, self._inv_freq, self._scale)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> mx.array:
    """float32 [head_dim / 2]: theta^(-2i / head_dim), adjusted as `config.kind` says.

    Raises:
        CheckpointError: the number of "factors" is not head_dim / 2.
    """
    exponents = mx.arange(0, head_dim, 2).astype(mx.float32) / head_dim
    inv_freq = 1.0 / mx.power(mx.array(config.theta, mx.float32), exponents)
    match config.kind:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / config.factor
        case "factors":
            if len(config.factors) != head_dim // 2:
                raise CheckpointError(
                    f"rope has {len(config.factors)} factors, head_dim {head_dim} needs {head_dim // 2}"
                )
            return inv_freq / mx.array(config.factors, mx.float32)
        case "proportional":
            turning = int(config.rotated * head_dim // 2)
            return mx.where(mx.arange(head_dim // 2) < turning, inv_freq, 0.0)
        case "llama3":
            return _llama3(inv_freq, config)


def _llama3(inv_freq: mx.array, config: RopeConfig) -> mx.array:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended linearly."""
    wavelength = 2 * math.pi / inv_freq
    low = config.original_context_length / config.low_freq_factor
    high = config.original_context_length / config.high_freq_factor
    blend = (config.original_context_length / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blended = (1 - blend) * inv_freq / config.factor + blend * inv_freq
    scaled = mx.where(wavelength > low, inv_freq / config.factor, inv_freq)
    return mx.where((wavelength <= low) & (wavelength >= high), blended, scaled)
