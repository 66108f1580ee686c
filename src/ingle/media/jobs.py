"""What a decoding process can be asked for: bytes and plain settings in, facts and arrays out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingle.errors import MediaRefused
from ingle.media.audio import mel, tokens
from ingle.media.audio.decode import Sound, SoundLimits, decode_sound
from ingle.media.audio.resample import RATE, to_16k
from ingle.media.image import gemma4
from ingle.media.image.decode import RGB, ImageLimits, decode_image, opened
from ingle.media.sandbox.wire import Array
from ingle.media.sniff import sniff
from ingle.media.video.decode import Clip, ClipLimits, decode_clip
from ingle.media.video.labels import time_label

Result = tuple[dict[str, Any], dict[str, Array]]
# Resampling looks a little ahead: with this much more than is kept, its end is that of the whole.
_MARGIN_S = 1.0


def image(data: memoryview, options: Mapping[str, Any]) -> Result:
    """Patches and positions of a picture. Options: `limits`, `budget`, `patch`, `fast_jpeg`."""
    budget = options["budget"]
    # A square picture is scaled to about this side; longer ones have a longer side than it.
    side = math.isqrt(budget) * gemma4.CELL
    picture = decode_image(data, _image_limits(options), side if options["fast_jpeg"] else None)
    values, positions = gemma4.patches(gemma4.scaled(picture.rgb, budget), options["patch"])
    height, width = picture.rgb.shape[:2]
    info = {
        "format": picture.format,
        "width": width,
        "height": height,
        "soft_tokens": gemma4.soft_tokens(height, width, budget),
    }
    return info, {"patches": values, "positions": positions}


def video(data: memoryview, options: Mapping[str, Any]) -> Result:
    """Patches of sampled frames. Options: `limits`, `budget`, `patch`, `frames`, and `sound`: with it
    the features of the sound track too, where there is one."""
    budget, patch = options["budget"], options["patch"]

    def keep(rgb: RGB) -> RGB:
        return gemma4.scaled(rgb, budget)

    clip = decode_clip(data, _clip_limits(options), options["frames"], keep)
    parts = [gemma4.patches(frame, patch) for frame in clip.frames]
    arrays: dict[str, Array] = {
        "patches": np.concatenate([values for values, _ in parts]),
        "positions": np.concatenate([positions for _, positions in parts]),
    }
    info: dict[str, Any] = {
        "format": clip.format,
        "width": clip.width,
        "height": clip.height,
        "total_frames": clip.total,
        "times": clip.times,
        "frame_tokens": [f.shape[0] * f.shape[1] // gemma4.CELL**2 for f in clip.frames],
    }
    if options.get("sound") and clip.has_sound:
        sound, features = audio(data, options)
        info["sound"] = sound
        arrays |= {f"sound_{name}": array for name, array in features.items()}
    return info, arrays


def inspect(data: memoryview, options: Mapping[str, Any]) -> Result:
    """What decoding gives, in numbers for people. Options: `limits`, `budget`, `frames`."""
    found = sniff(data)
    if found.kind == "image":
        return _inspect_image(data, options), {}
    if found.kind == "media":
        try:
            clip = decode_clip(data, _clip_limits(options), options["frames"], _mean)
        except MediaRefused as error:
            if error.code != "media_wrong_kind":
                raise
        else:
            return _inspect_clip(clip, options), {}
    sound = decode_sound(data, _sound_limits(options))
    samples = to_16k(sound.samples, sound.rate)
    return {
        "kind": "audio",
        **_sound_facts(sound),
        "mono_rms": round(float(np.sqrt(np.mean(np.square(sound.samples, dtype=np.float64)))), 6),
        "truncated": sound.truncated or len(samples) > tokens.MAX_SAMPLES,
        "soft_tokens": tokens.soft_tokens(len(samples)),
    }, {}


def _inspect_image(data: memoryview, options: Mapping[str, Any]) -> dict[str, Any]:
    picture = decode_image(data, _image_limits(options))
    with opened(data, _image_limits(options)) as header:
        frames = int(getattr(header, "n_frames", 1))
    height, width = picture.rgb.shape[:2]
    return {
        "kind": "image",
        "format": picture.format,
        "mode": picture.mode,
        "width": width,
        "height": height,
        "frames": frames,
        "mean_rgb": [round(float(value), 2) for value in _mean(picture.rgb)],
        "soft_tokens": gemma4.soft_tokens(height, width, options["budget"]),
    }


def _inspect_clip(clip: Clip[Array], options: Mapping[str, Any]) -> dict[str, Any]:
    each = gemma4.soft_tokens(clip.height, clip.width, options["frame_budget"])
    return {
        "kind": "video",
        "format": clip.format,
        "width": clip.width,
        "height": clip.height,
        "frames": clip.total,
        "sampled_frames": len(clip.frames),
        "timestamps": [time_label(time) for time in clip.times],
        "has_sound": clip.has_sound,
        "mean_rgb": [round(float(value), 2) for value in np.mean(clip.frames, axis=0)],
        "soft_tokens": each * len(clip.frames),
    }


def _mean(rgb: RGB) -> Array:
    return rgb.reshape(-1, 3).mean(axis=0, dtype=np.float64)


def audio(data: memoryview, options: Mapping[str, Any]) -> Result:
    """Features of a sound. Options: `limits`, `towers`, `window`."""
    longest = tokens.MAX_SAMPLES / RATE
    sound = decode_sound(data, _sound_limits(options, longest + _MARGIN_S))
    samples = to_16k(sound.samples, sound.rate)
    truncated = sound.truncated or len(samples) > tokens.MAX_SAMPLES
    samples = samples[: tokens.MAX_SAMPLES]
    info = {**_sound_facts(sound), "samples": len(samples), "truncated": truncated}
    if not options["towers"]:
        return {**info, "soft_tokens": tokens.unified_soft_tokens(len(samples))}, {
            "raw": mel.raw_frames(samples)
        }
    if len(samples) < tokens.MIN_SAMPLES:
        raise MediaRefused(
            f"the audio has {len(samples)} samples at 16 kHz, at least {tokens.MIN_SAMPLES} are needed",
            code="media_too_short",
        )
    features, real = mel.log_mel(samples, options["window"])
    return {**info, "frames_real": real, "soft_tokens": tokens.soft_tokens(len(samples))}, {"mel": features}


def _sound_facts(sound: Sound) -> dict[str, Any]:
    return {
        "format": sound.format,
        "sample_rate": sound.rate,
        "channels": sound.channels,
        "frames": len(sound.samples),
        "duration_s": round(sound.seconds, 4),
    }


def _image_limits(options: Mapping[str, Any]) -> ImageLimits:
    limits = options["limits"]
    return ImageLimits(limits["max_side"], limits["max_pixels"])


def _clip_limits(options: Mapping[str, Any]) -> ClipLimits:
    limits = options["limits"]
    return ClipLimits(_image_limits(options), limits["max_frames"], limits["max_video_pixels"])


def _sound_limits(options: Mapping[str, Any], longest_s: float = float("inf")) -> SoundLimits:
    limits = options["limits"]
    return SoundLimits(min(limits["max_audio_s"], longest_s), limits["max_pcm_bytes"])


JOBS = {"image": image, "audio": audio, "video": video, "inspect": inspect}
