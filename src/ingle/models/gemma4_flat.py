"""Gemma 4 without towers (12B): patches of 48 pixels and frames of 40 ms are projected as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx

from ingle.contracts.encoder_config import MergedPatchesConfig, RawAudioConfig
from ingle.contracts.weights import WeightSource
from ingle.models.tower_reader import TowerReader

PATCH_VALUES = 48 * 48 * 3
FRAME_VALUES = 640
_EPS = 1e-5  # of the LayerNorms: PyTorch's own default, no setting names it


class MergedPatches:
    """{"patches": [N, 6912] in [0, 1], "positions": [N, 2] of (x, y)} -> [N, hidden of the decoder]."""

    def __init__(
        self, config: MergedPatchesConfig, source: WeightSource, dtype: mx.Dtype, outputs: int
    ) -> None:
        read, name = TowerReader(source, dtype, config.norm_eps), "vision_embedder"
        width = config.width
        self._dtype = dtype
        self._norms = [
            tuple(read.tensor(f"{name}.{norm}.{part}", size) for part in ("weight", "bias"))
            for norm, size in (("patch_ln1", PATCH_VALUES), ("patch_ln2", width), ("pos_norm", width))
        ]
        self._dense = read.linear(f"{name}.patch_dense", width, PATCH_VALUES, bias=True)
        self._table = read.tensor(f"{name}.pos_embedding", config.positions, 2, width)
        self._projector = read.projector("embed_vision", outputs, width)

    def __call__(self, features: Mapping[str, mx.array]) -> mx.array:
        patches, positions = features["patches"].astype(self._dtype), features["positions"]
        x = self._norm(1, self._dense(self._norm(0, patches)))
        x = x + self._table[positions[:, 0], 0] + self._table[positions[:, 1], 1]
        return self._projector(self._norm(2, x))

    def _norm(self, number: int, x: mx.array) -> mx.array:
        weight, bias = self._norms[number]
        x = x.astype(mx.float32)
        centred = x - _mean(x)
        return (centred * mx.rsqrt(_mean(centred * centred) + _EPS)).astype(self._dtype) * weight + bias


def _mean(x: mx.array) -> mx.array:
    """Over the last axis, in parts: one float32 sum of 6912 values loses a digit that the LayerNorm needs."""
    parts = x.reshape(*x.shape[:-1], -1, math.gcd(x.shape[-1], 64))
    return mx.mean(mx.mean(parts, axis=-1), axis=-1, keepdims=True)


class RawAudio:
    """{"raw": [N, 640]} -> [N, hidden of the decoder]."""

    def __init__(self, config: RawAudioConfig, source: WeightSource, dtype: mx.Dtype, outputs: int) -> None:
        self._dtype = dtype
        read = TowerReader(source, dtype, config.norm_eps)
        self._projector = read.projector("embed_audio", outputs, FRAME_VALUES)

    def __call__(self, features: Mapping[str, mx.array]) -> mx.array:
        return self._projector(features["raw"].astype(self._dtype))
