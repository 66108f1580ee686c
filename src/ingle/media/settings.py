"""Settings of decoding jobs as plain data: what crosses to the decoding process, and what keys features."""

from __future__ import annotations

from typing import Any

from ingle.config import MediaConfig

IMAGE_BUDGET, FRAME_BUDGET, CLIP_FRAMES = 280, 70, 32


def limits(config: MediaConfig) -> dict[str, Any]:
    """The limits that decoding keeps by itself."""
    names = ("max_side", "max_pixels", "max_frames", "max_video_pixels", "max_audio_s", "max_pcm_bytes")
    return {name: getattr(config, name) for name in names}


def inspect_options(config: MediaConfig) -> dict[str, Any]:
    """For people: Gemma 4's defaults."""
    return {
        "limits": limits(config),
        "budget": IMAGE_BUDGET,
        "frame_budget": FRAME_BUDGET,
        "frames": CLIP_FRAMES,
    }
