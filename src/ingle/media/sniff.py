"""What do these bytes hold? Asked of the bytes alone: declared types and file names do not count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ingle.errors import MediaRefused

Kind: TypeAlias = Literal["image", "audio", "media"]  # media: a container of sound, pictures or both

_HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
_QUICKTIME_ATOMS = frozenset((b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"moof", b"styp"))
_MP3_SEARCH_BYTES = 64 * 1024
# Known and refused by name: nobody here decodes them.
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML"),
    (b"<!DOCTYPE", "HTML"),
    (b"<html", "HTML"),
    (b"#EXTM3U", "playlist"),
    (b"ffconcat", "playlist"),
    (b"v=0\r\n", "SDP"),
    (b"v=0\n", "SDP"),
    (b"8BPS", "Photoshop"),
    (b"qoif", "QOI"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"FLV", "FLV"),
    (b"\x00\x00\x01\xba", "MPEG program stream"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"\xd7\xcd\xc6\x9a", "WMF"),
)


@dataclass(frozen=True, slots=True)
class Sniffed:
    kind: Kind
    format: str  # the decoder's name for it: Pillow's for images, FFmpeg's demuxer for the rest


def sniff(data: bytes | memoryview) -> Sniffed:
    """Raises MediaRefused: empty, or no format that is taken; names what was found."""
    head = bytes(data[:4096])
    if not head:
        raise MediaRefused("the data is empty", code="media_empty")
    found = _image(head) or _riff(head) or _sound(data, head) or _container(head)
    if found is not None:
        return found
    lower = head.lstrip().lower()
    for magic, name in _OTHERS:
        if head.startswith(magic) or (magic[:1] == b"<" and lower.startswith(magic.lower())):
            raise MediaRefused(f"the data is {name}, which is not taken", code="media_unsupported")
    if head[4:8] == b"ftyp":
        raise MediaRefused("the data is of an unknown MP4 brand", code="media_unsupported")
    if (frames := _mp3_after_junk(data)) is not None:
        return frames
    raise MediaRefused(
        "the data is no known image, audio or video format",
        code="media_unsupported",
        detail=f"begins with {head[:16].hex(' ')}",
    )


def _image(head: bytes) -> Sniffed | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return Sniffed("image", "PNG")
    if head.startswith(b"\xff\xd8\xff"):
        return Sniffed("image", "JPEG")
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return Sniffed("image", "GIF")
    if head.startswith(b"BM"):
        return Sniffed("image", "BMP")
    if head[:4] in (b"II*\x00", b"MM\x00*"):
        return Sniffed("image", "TIFF")
    if head[4:8] == b"ftyp":
        brands = {head[8:12], *(head[i : i + 4] for i in range(16, min(len(head), _box_size(head)), 4))}
        if brands & {b"avif", b"avis"}:
            return Sniffed("image", "AVIF")
        if head[8:12] in _HEIF_BRANDS:
            return Sniffed("image", "HEIF")
    return None


def _box_size(head: bytes) -> int:
    return int.from_bytes(head[:4], "big")


def _riff(head: bytes) -> Sniffed | None:
    if head[:4] not in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        return None
    form = head[8:12]
    if form == b"WAVE":
        return Sniffed("audio", "wav")
    if form == b"WEBP" and head[:4] == b"RIFF":
        return Sniffed("image", "WEBP")
    name = {b"AVI ": "AVI"}.get(form, f"RIFF with the form {form.decode('ascii', 'replace')!r}")
    raise MediaRefused(f"the data is {name}, which is not taken", code="media_unsupported")


def _sound(data: bytes | memoryview, head: bytes) -> Sniffed | None:
    if head.startswith(b"fLaC"):
        return Sniffed("audio", "flac")
    if head.startswith(b"FORM") and head[8:12] in (b"AIFF", b"AIFC"):
        return Sniffed("audio", "aiff")
    if head.startswith(b"riff\x2e\x91\xcf\x11"):
        return Sniffed("audio", "w64")
    if head.startswith(b".snd"):
        return Sniffed("audio", "au")
    if head.startswith(b"caff"):
        return Sniffed("audio", "caf")
    if head.startswith(b"#!AMR"):
        return Sniffed("audio", "amr")
    if head.startswith(b"ID3") and len(head) >= 10:
        size = sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
        behind = bytes(data[10 + size : 10 + size + 4])
        if behind == b"fLaC":
            return Sniffed("audio", "flac")
        return Sniffed("audio", "aac" if _is_adts(behind) else "mp3")
    if _is_adts(head):
        return Sniffed("audio", "aac")
    if _mp3_frame_bytes(head) is not None:
        return Sniffed("audio", "mp3")
    return None


def _container(head: bytes) -> Sniffed | None:
    if head.startswith(b"OggS"):
        return Sniffed("media", "ogg")
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return Sniffed("media", "matroska")
    if head.startswith(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"):
        return Sniffed("media", "asf")
    if head[4:8] == b"ftyp" or head[4:8] in _QUICKTIME_ATOMS:
        return Sniffed("media", "mov")
    return None


def _is_adts(head: bytes) -> bool:
    return len(head) >= 2 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0


# Kilobits a second by (MPEG version 1?, layer), from ISO/IEC 11172-3 and 13818-3.
_BITRATES = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44100, 48000, 32000)


def _mp3_frame_bytes(head: bytes) -> int | None:
    """Length of the MPEG audio frame whose header this is; None: it is none."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = (head[1] >> 3) & 3, 4 - ((head[1] >> 1) & 3)
    bitrate, rate = head[2] >> 4, (head[2] >> 2) & 3
    if version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return None
    kilobits = _BITRATES[version == 3, layer][bitrate]
    hertz = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    padding = (head[2] >> 1) & 1
    if layer == 1:
        return (12_000 * kilobits // hertz + padding) * 4
    samples = 72 if layer == 3 and version != 3 else 144
    return samples * 1000 * kilobits // hertz + padding


def _mp3_after_junk(data: bytes | memoryview) -> Sniffed | None:
    """Recorders and streams begin anywhere: three frames in a row are no accident."""
    text = bytes(data[: _MP3_SEARCH_BYTES + 8192])
    start = text.find(b"\xff")
    while 0 <= start < _MP3_SEARCH_BYTES:
        at, frames = start, 0
        while frames < 3 and (size := _mp3_frame_bytes(text[at : at + 4])) is not None:
            at, frames = at + size, frames + 1
        if frames == 3:
            return Sniffed("audio", "mp3")
        start = text.find(b"\xff", start + 1)
    return None


def undecodable(what: str, error: Exception) -> MediaRefused:
    """What a decoder raised, as a refusal: its own words are for the log alone."""
    return MediaRefused(
        f"the {what} could not be decoded",
        code="media_undecodable",
        detail=f"{type(error).__name__}: {error}",
    )
