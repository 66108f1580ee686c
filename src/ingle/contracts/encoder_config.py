"""Sizes of what turns pictures and sounds into soft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTowerConfig:
    """Gemma 4's vision transformer: patches of 16 pixels in, one soft token for each 3 x 3 of them out."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    positions: int  # rows of the position table: the longest side of a picture, in patches
    rope_theta: float
    norm_eps: float
    clipped: bool  # linears clamp what goes in and comes out
    standardize: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPatchesConfig:
    """Gemma 4 without towers: patches of 48 pixels are projected as they are."""

    width: int
    positions: int
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerConfig:
    """Gemma 4's conformer: log-mel frames in, one soft token for each four of them out."""

    hidden_size: int
    num_layers: int
    num_heads: int
    channels: tuple[int, int]  # of the two convolutions
    kernel: int  # of the depthwise convolution
    chunk: int  # queries that share a span of keys
    past: int  # keys before a query that it sees
    logit_cap: float
    residual_weight: float
    output_size: int
    norm_eps: float
    clipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAudioConfig:
    """Gemma 4 without towers: frames of 640 samples are projected as they are."""

    norm_eps: float


Vision: TypeAlias = VisionTowerConfig | MergedPatchesConfig
Audio: TypeAlias = AudioTowerConfig | RawAudioConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodersConfig:
    vision: Vision | None
    audio: Audio | None
    soft_token_ids: frozenset[int]  # stand where features go; the embedding of `pad_token_id` is theirs
    pad_token_id: int
    both_ways: bool  # in sliding layers the tokens of one picture see each other
