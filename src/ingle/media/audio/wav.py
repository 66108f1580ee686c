"""WAV by our own parser: chunks are walked, sizes are doubted, samples are what the format chunk says.

RIFF, RIFX (big-endian), RF64 and BW64. What streams and careless writers leave behind is read: sizes
of 0, 0x7FFFFFFF and 0xFFFFFFFF or beyond the file mean "to the end", pad bytes may be missing. Sample
formats are taken exactly or not at all: another codec inside RIFF is somebody else's to decode.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingle.errors import MediaRefused

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
# The tail of every sub-format GUID that stands for a plain format tag (RFC 2361).
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_STREAMED = (0, 0x7FFFFFFF, 0xFFFFFFFF)
_KNOWN = frozenset(
    (
        *(b"fmt ", b"data", b"LIST", b"fact", b"bext", b"JUNK", b"junk", b"PAD ", b"FLLR", b"cue ", b"smpl"),
        *(b"inst", b"id3 ", b"ID3 ", b"iXML", b"axml", b"PEAK", b"ds64", b"chna", b"plst", b"_PMX"),
    )
)
MAX_RATE = 384_000
MAX_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class WavFormat:
    """`tag` is PCM or FLOAT, or else the tag of a codec that is not decoded here."""

    tag: int
    channels: int
    rate: int
    bits: int  # of the container of one sample
    big_endian: bool

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


def parse(data: bytes | memoryview) -> tuple[WavFormat, memoryview]:
    """The format and the bytes of the `data` chunk, cut to whole frames. Of repeated chunks the last counts.

    For a foreign codec the bytes are empty.

    Raises:
        MediaRefused: no format or data chunk, no whole frame, or a format out of range.
    """
    view = memoryview(data)
    magic = bytes(view[:4])
    order, large = (">" if magic == b"RIFX" else "<"), magic in (b"RF64", b"BW64")
    found: WavFormat | None = None
    body: memoryview | None = None
    large_data: int | None = None
    at = 12
    while at + 8 <= len(view):
        name = bytes(view[at : at + 4])
        (size,) = struct.unpack(order + "I", view[at + 4 : at + 8])
        start = at + 8
        if name == b"data":
            if large and size == 0xFFFFFFFF and large_data is not None:
                size = large_data
            if size in _STREAMED or start + size > len(view):
                size = len(view) - start
            body = view[start : start + size]
        chunk = view[start : start + size]
        if name == b"fmt ":
            found = _format(chunk, order)
        elif name == b"ds64" and len(chunk) >= 16:
            large_data = int.from_bytes(chunk[8:16], "little")
        at = _next_chunk(view, start + size)
    if found is None:
        raise _malformed("the WAV file has no format chunk")
    if found.tag not in (PCM, FLOAT):
        return found, memoryview(b"")
    if body is None:
        raise _malformed("the WAV file has no data chunk")
    frames = len(body) // found.frame_bytes
    if frames == 0:
        raise MediaRefused("the audio has no samples", code="media_empty")
    return found, body[: frames * found.frame_bytes]


def _next_chunk(view: memoryview, end: int) -> int:
    """Chunks begin at even offsets, but for writers that forget the pad byte."""
    if end % 2 == 0:
        return end
    padded, unpadded = bytes(view[end + 1 : end + 5]), bytes(view[end : end + 4])
    if padded in _KNOWN:
        return end + 1
    return end if unpadded in _KNOWN or (unpadded.isalnum() and unpadded.isascii()) else end + 1


def _format(chunk: memoryview, order: str) -> WavFormat:
    if len(chunk) < 16:
        raise _malformed(f"the WAV format chunk has {len(chunk)} bytes, at least 16 are needed")
    tag, channels, rate, _, align, bits = struct.unpack(order + "HHIIHH", chunk[:16])
    if tag == EXTENSIBLE:
        if len(chunk) < 40:
            raise _malformed(f"the extensible WAV format chunk has {len(chunk)} bytes, 40 are needed")
        valid, guid = struct.unpack(order + "H", chunk[18:20])[0], bytes(chunk[24:40])
        tag = struct.unpack(order + "H", guid[:2])[0] if guid[2:] == _GUID_TAIL else EXTENSIBLE
        if valid > bits:
            raise _malformed(f"the WAV file has {valid} valid bits in containers of {bits}")
    if not 1 <= rate <= MAX_RATE:
        raise _malformed(f"the WAV file has a sample rate of {rate} Hz, allowed are 1 to {MAX_RATE}")
    if not 1 <= channels <= MAX_CHANNELS:
        raise _malformed(f"the WAV file has {channels} channels, allowed are 1 to {MAX_CHANNELS}")
    found = WavFormat(tag, channels, rate, bits, order == ">")
    if tag not in (PCM, FLOAT):
        return found
    sizes = (8, 16, 24, 32) if tag == PCM else (32, 64)
    if bits not in sizes:
        allowed = ", ".join(map(str, sizes))
        raise _malformed(f"the WAV file has samples of {bits} bits, allowed are {allowed}")
    if align not in (0, found.frame_bytes):
        raise _malformed(f"the WAV file has frames of {align} bytes, its samples need {found.frame_bytes}")
    return found


def samples(format: WavFormat, body: memoryview) -> npt.NDArray[np.float32]:
    """float32 [frames, channels] in [-1, 1]; integers are divided by their full scale."""
    order = ">" if format.big_endian else "<"
    if format.tag == FLOAT:
        raw = np.frombuffer(body, f"{order}f{format.bits // 8}")
        flat = sane(raw)
    elif format.bits == 8:
        flat = (np.frombuffer(body, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(1 / 128)
    elif format.bits == 24:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, (slice(0, 3) if format.big_endian else slice(1, 4))] = np.frombuffer(body, np.uint8).reshape(
            -1, 3
        )
        # Three bytes at the top of four: full scale is that of 32 bits, and every value is exact.
        flat = wide.view(f"{order}i4")[:, 0].astype(np.float32) * np.float32(1 / 2**31)
    else:
        full = np.float32(1 / 2 ** (format.bits - 1))
        flat = np.frombuffer(body, f"{order}i{format.bits // 8}").astype(np.float32) * full
    return flat.reshape(-1, format.channels)


def sane(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """As float32: NaN and infinities are silence, what is over full scale is cut."""
    finite = np.where(np.isfinite(values), values, values.dtype.type(0))
    return np.clip(finite, -1, 1).astype(np.float32, copy=False)


def _malformed(message: str) -> MediaRefused:
    return MediaRefused(message, code="media_malformed")
