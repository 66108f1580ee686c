"""Sound of any taken format as mono float32, no more of it than is needed.

Runs in a decoding process. Seconds and bytes are counted while decoding: headers promise anything.
What decoded before a damaged packet is kept and called truncated.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt
from av.container import InputContainer

from ingle.errors import MediaRefused
from ingle.media.audio import wav
from ingle.media.sniff import Sniffed, sniff, undecodable

# Nothing that follows links to other files, and nothing that opens them (FFmpeg's own playlists do).
_DEMUXERS = "wav,w64,aiff,mp3,aac,flac,ogg,mov,mp4,matroska,webm,asf,amr,caf,au"
OPEN_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
_FULL_SCALE = {"u1": 1 / 128, "i2": 1 / 2**15, "i4": 1 / 2**31, "i8": 1 / 2**63}
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sound:
    samples: Samples  # [frames], mono: the mean of all channels
    rate: int  # Hz
    channels: int  # before the mean
    format: str  # "wav/pcm", "mp3/mp3float": container and codec
    truncated: bool  # there is more than this: a limit was reached, or the rest is damaged

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True)
class SoundLimits:
    """Decoding stops there; reaching one is no error."""

    max_s: float
    max_pcm_bytes: int  # all channels, as float32

    def frames(self, rate: int, channels: int) -> int:
        return max(1, min(int(self.max_s * rate), self.max_pcm_bytes // (4 * channels)))


def decode_sound(data: bytes | memoryview, limits: SoundLimits) -> Sound:
    """Raises MediaRefused: no sound in there, a format that is not taken, or nothing that decodes."""
    found = sniff(data)
    if found.kind == "image":
        raise MediaRefused(f"the data is a {found.format} image, not audio", code="media_wrong_kind")
    if found.format == "wav":
        format, body = wav.parse(data)
        if format.tag in (wav.PCM, wav.FLOAT):
            frames = limits.frames(format.rate, format.channels)
            kept = body[: frames * format.frame_bytes]
            name = "wav/pcm" if format.tag == wav.PCM else "wav/float"
            mono = _mono(wav.samples(format, kept))
            return Sound(mono, format.rate, format.channels, name, len(kept) < len(body))
    return _from_container(data, found, limits)


def _mono(samples: Samples) -> Samples:
    return samples[:, 0].copy() if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)


def _from_container(data: bytes | memoryview, found: Sniffed, limits: SoundLimits) -> Sound:
    try:
        with open_container(data, found) as container:
            if not container.streams.audio:
                raise MediaRefused("the data holds no sound", code="media_wrong_kind")
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            rate, channels = stream.codec_context.sample_rate, stream.codec_context.channels
            _check(rate, channels)
            codec = stream.codec_context.codec.name
            chunks: list[npt.NDArray[Any]] = []
            limit, count, truncated = limits.frames(rate, channels), 0, False
            try:
                for part in _decoded(container, stream, rate, channels):
                    chunks.append(part)
                    count += len(part)
                    if count > limit:
                        truncated = True
                        break
            except (av.error.FFmpegError, OSError, ValueError, EOFError, _Changed):
                truncated = True
    except (av.error.FFmpegError, OSError, ValueError, EOFError) as error:
        raise undecodable("sound", error) from None
    if not count:
        raise MediaRefused("the audio has no samples", code="media_empty")
    mono = _mono(_scaled(np.concatenate(chunks)[:limit]))
    return Sound(mono, rate, channels, f"{found.format}/{codec}", truncated)


def open_container(data: bytes | memoryview, found: Sniffed) -> InputContainer:
    # The demuxer is named, so that nothing is guessed from the content; the lists hold for what it opens.
    container = av.open(
        io.BytesIO(data), "r", format=found.format, options=OPEN_OPTIONS, metadata_errors="replace"
    )
    assert isinstance(container, InputContainer)
    return container


class _Changed(Exception):
    """The rate or the channels changed in the middle: what follows is another recording."""


def _check(rate: int, channels: int) -> None:
    if not 1 <= rate <= wav.MAX_RATE:
        message = f"the audio has a sample rate of {rate} Hz, allowed are 1 to {wav.MAX_RATE}"
        raise MediaRefused(message, code="media_malformed")
    if not 1 <= channels <= wav.MAX_CHANNELS:
        message = f"the audio has {channels} channels, allowed are 1 to {wav.MAX_CHANNELS}"
        raise MediaRefused(message, code="media_malformed")


def _decoded(
    container: InputContainer, stream: av.AudioStream, rate: int, channels: int
) -> Iterator[npt.NDArray[Any]]:
    """Raw samples [frames, channels] of each decoded frame."""
    kind = None
    for frame in container.decode(stream):
        if not frame.samples:
            continue
        raw: npt.NDArray[Any] = frame.to_ndarray()
        kind = kind or raw.dtype
        if frame.sample_rate != rate or frame.layout.nb_channels != channels or raw.dtype != kind:
            raise _Changed
        yield raw.T if frame.format.is_planar else raw.reshape(-1, channels)


def _scaled(raw: npt.NDArray[Any]) -> Samples:
    """float32 in [-1, 1], by the full scale of the decoder's type."""
    kind = raw.dtype.str[1:]
    if kind in ("f4", "f8"):
        return wav.sane(raw)
    values = raw.astype(np.float32)
    if kind == "u1":
        values -= np.float32(128)
    return values * np.float32(_FULL_SCALE[kind])
