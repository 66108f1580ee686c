"""Counter-based noise: a number that depends on (seed, position, token) and on nothing else.

Nothing is drawn from a stream, so batch mates, retries and drafts cannot shift a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

_MASK = 2**64 - 1


def noise_keys(seeds: Sequence[int], positions: Sequence[int]) -> mx.array:
    """One key for each (seed, position): uint32 [rows, 2], for MLX's Threefry generator.

    Seed and position are mixed on the host by the finaliser of SplitMix64 (Steele, Lea and Flood,
    2014), so that neighbouring seeds and positions share no noise.
    """
    mixed = [_mix((_mix(seed) + position) & _MASK) for seed, position in zip(seeds, positions, strict=True)]
    return mx.array([[value >> 32, value & 0xFFFFFFFF] for value in mixed], mx.uint32)


def gumbel(keys: mx.array, vocab_size: int) -> mx.array:
    """Standard Gumbel noise, float32 [rows, vocab_size]; row r depends on keys[r] alone."""

    def one(key: mx.array) -> mx.array:
        return mx.random.gumbel((vocab_size,), key=key)

    return mx.stack([one(key) for key in keys])


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
