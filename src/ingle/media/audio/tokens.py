"""How many soft tokens a sound takes: from its decoded samples, equal to the rows that its tower gives."""

from __future__ import annotations

import math

MAX_SAMPLES = 480_000  # 30 s at 16 kHz: the reference cuts there, before any feature
MAX_SOFT_TOKENS = 750
FRAME, HOP = 320, 160
MIN_SAMPLES = (
    FRAME // 2 + 1
)  # fewer give no frame: 160 zeros go in front, and a frame needs one more than 320


def mel_frames(samples: int) -> int:
    """Frames whose every sample is real, of `samples` at 16 kHz (Gemma 4: semicausal, 160 zeros in front)."""
    return max(0, (samples + FRAME // 2 - (FRAME + 1)) // HOP + 1)


def soft_tokens(samples: int) -> int:
    """Rows of the audio tower: two convolutions of stride 2 over the frames, 750 at most."""
    frames = mel_frames(min(samples, MAX_SAMPLES))
    for _ in range(2):
        frames = (frames - 1) // 2 + 1 if frames else 0
    return min(frames, MAX_SOFT_TOKENS)


def published_soft_tokens(samples: int) -> int:
    """The older published rule, one token for each 40 ms begun. Not what the tower gives: it differs for
    a quarter of all lengths, 641 and 16,001 samples among them."""
    return min(math.ceil(samples / 16 / 40), MAX_SOFT_TOKENS)


def unified_soft_tokens(samples: int) -> int:
    """Gemma 4 without towers: raw frames of 640 samples, the last one filled with zeros."""
    return -(-min(samples, MAX_SAMPLES) // 640)
