"""Gemma 4's log-mel features, bit for bit those of transformers' `Gemma4AudioFeatureExtractor`.

float32 frames and FFT (numpy 2 keeps them so), a float64 mel bank and logarithm, float32 out. 128 HTK
mel filters from 0 to 8 kHz without normalisation; the topmost falls between two bins and is all zero.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ingle.media.audio.tokens import FRAME, HOP, MAX_SAMPLES
from ingle.media.audio.windows import WINDOWS

BINS = 128
_FFT = 512
_FLOOR = np.float64(1e-3)
_PAD_TO = 128  # samples
_BLOCK = 256  # frames worked on at a time: their spectra stay in the cache
UNIFIED_FRAME = 640


@functools.cache
def mel_bank() -> npt.NDArray[np.float64]:
    """[257 bins of the FFT, 128 filters], float64: triangles between points even on the HTK mel scale."""
    points = np.linspace(_hertz_to_mel(0.0), _hertz_to_mel(8000.0), BINS + 2)
    corners = 700.0 * (np.power(10.0, points / 2595.0) - 1.0)
    widths = np.diff(corners)
    slopes = corners[None] - np.linspace(0, 8000, _FFT // 2 + 1)[:, None]
    return np.maximum(0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))


def _hertz_to_mel(hertz: float) -> np.float64:
    return 2595.0 * np.log10(1.0 + np.float64(hertz) / 700.0)


def log_mel(
    samples: npt.NDArray[np.float32], window: str = "reference"
) -> tuple[npt.NDArray[np.float32], int]:
    """Features float32 [T, 128] of mono samples at 16 kHz, and how many of the T frames are real.

    Samples beyond 30 s are cut. Frames that reach into the padding are zero; they come last.
    `window`: "reference" or "float32".
    """
    samples = samples[:MAX_SAMPLES]
    count = len(samples)
    padded = np.zeros(FRAME // 2 + -(-count // _PAD_TO) * _PAD_TO, np.float32)
    padded[FRAME // 2 : FRAME // 2 + count] = samples
    total = max(0, (len(padded) - (FRAME + 1)) // HOP + 1)
    real = min(total, max(0, -(-(count - FRAME // 2) // HOP)))  # their last sample is one of ours
    features = np.zeros((total, BINS), np.float32)
    if not total:
        return features, 0
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    chosen, bank = WINDOWS[window], mel_bank()
    for start in range(0, total, _BLOCK):
        end = min(start + _BLOCK, total)
        spectrum = np.fft.rfft(frames[start:end] * chosen, n=_FFT, axis=-1)
        mel = np.abs(spectrum) @ bank
        mel += _FLOOR
        features[start:end] = np.log(mel, out=mel)
    features[real:] *= 0  # as the reference does it: the zeros keep the sign of what was there
    return features, real


def raw_frames(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """For the model without towers: float32 [ceil(n / 640), 640], the last frame filled with zeros."""
    samples = samples[:MAX_SAMPLES]
    frames = np.zeros((-(-len(samples) // UNIFIED_FRAME), UNIFIED_FRAME), np.float32)
    frames.reshape(-1)[: len(samples)] = samples
    return frames
