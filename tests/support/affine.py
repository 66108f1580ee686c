"""Random quantised matrices together with their exact values."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ingle.contracts.weights import Affine


def affine(
    n: int, k: int, bits: int, group: int, seed: int = 0, *, centred: bool = False, wide: bool = False
) -> tuple[Affine, np.ndarray]:
    """A matrix [n, k] in codes, and its float64 values. `wide`: scales that are no half-precision numbers.

    k * bits is a multiple of 32: rows are whole words.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**bits, (n, k), dtype=np.uint32)
    dtype = np.float32 if wide else np.float16
    scales = rng.normal(0, 0.1, (n, k // group)).astype(dtype)
    biases = rng.normal(0, 0.1, (n, k // group)).astype(dtype)
    if centred:
        biases = (scales.astype(np.float32) * -(2.0 ** (bits - 1))).astype(np.float32)
    values = codes * np.repeat(scales.astype(np.float64), group, 1)
    values += np.repeat(biases.astype(np.float64), group, 1)
    stream = ((codes[:, :, None] >> np.arange(bits, dtype=np.uint32)) & 1).astype(np.uint8)
    words = np.packbits(stream.reshape(n, -1), axis=1, bitorder="little").view(np.uint32)
    return Affine(mx.array(words), mx.array(scales), mx.array(biases), bits, group), values
