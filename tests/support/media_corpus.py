"""Every form of sound, picture and clip that is taken, and many that are not, made on the spot.

`corpus()` gives (name, bytes, what `inspect` must say): a dict of facts, or the code of the refusal.
"""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

RATE = 16_000
TONE = (0.25 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
RMS = round(float(np.sqrt(np.mean(TONE.astype(np.float64) ** 2))), 3)
PCM16 = np.rint(TONE * 32767).astype("<i2")
FLOAT_GUID = struct.pack("<H", 3) + bytes.fromhex("000000001000800000aa00389b71")
PCM_GUID = struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
SAMPLES = Path(__file__).parent.parent / "media" / "samples"  # what no encoder here makes
Case = tuple[str, bytes, dict[str, Any] | str]


def chunk(name: bytes, body: bytes, *, size: int | None = None, pad: bool = True, order: str = "<") -> bytes:
    length = len(body) if size is None else size
    return name + struct.pack(order + "I", length) + body + (b"\0" if pad and len(body) % 2 else b"")


def fmt(
    tag: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    extra: bytes = b"",
    order: str = "<",
    align: int | None = None,
) -> bytes:
    frame = channels * bits // 8 if align is None else align
    return chunk(
        b"fmt ",
        struct.pack(order + "HHIIHH", tag, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits) + extra,
        order=order,
    )


def riff(*chunks: bytes, magic: bytes = b"RIFF", order: str = "<") -> bytes:
    body = b"".join(chunks)
    return magic + struct.pack(order + "I", len(body) + 4) + b"WAVE" + body


def extensible(guid: bytes, bits: int, valid: int) -> bytes:
    return fmt(0xFFFE, bits=bits, extra=struct.pack("<HHI", 22, valid, 4) + guid)


def pcm24(values: Any) -> bytes:
    return (values.astype(np.int32) << 8).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def wavs() -> list[Case]:
    data = PCM16.tobytes()
    good = {"kind": "audio", "sample_rate": RATE, "channels": 1, "frames": RATE, "rms": RMS}
    odd = chunk(b"LIST", b"INFOabc")
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 0, len(data), RATE, 0))
    stereo = np.repeat(PCM16[:, None], 2, axis=1).tobytes()
    bad_float = TONE.copy()
    bad_float[:3] = [np.nan, np.inf, -np.inf]
    return [
        ("pcm16.wav", riff(fmt(), chunk(b"data", data)), good),
        ("pcm8.wav", riff(fmt(bits=8), chunk(b"data", np.rint(TONE * 127 + 128).astype(np.uint8).tobytes())), good),
        ("pcm24.wav", riff(fmt(bits=24), chunk(b"data", pcm24(PCM16))), good),
        ("pcm32.wav", riff(fmt(bits=32), chunk(b"data", (PCM16.astype("<i4") << 16).tobytes())), good),
        ("f32.wav", riff(fmt(3, bits=32), chunk(b"data", TONE.tobytes())), good),
        ("f64.wav", riff(fmt(3, bits=64), chunk(b"data", TONE.astype("<f8").tobytes())), good),
        ("f32_nan.wav", riff(fmt(3, bits=32), chunk(b"data", bad_float.tobytes())), good),
        ("ext16.wav", riff(extensible(PCM_GUID, 16, 16), chunk(b"data", data)), good),
        ("extf32.wav", riff(extensible(FLOAT_GUID, 32, 32), chunk(b"data", TONE.tobytes())), good),
        ("ext24in32.wav", riff(extensible(PCM_GUID, 32, 24), chunk(b"data", (PCM16.astype("<i4") << 16).tobytes())), good),
        ("fmt18_fact.wav", riff(fmt(extra=b"\0\0"), chunk(b"fact", b"\0\0\0\0"), chunk(b"data", data)), good),
        ("odd_list.wav", riff(fmt(), odd, chunk(b"data", data)), good),
        ("odd_list_unpadded.wav", riff(fmt(), chunk(b"LIST", b"INFOabc", pad=False), chunk(b"data", data)), good),
        ("data_first.wav", riff(chunk(b"data", data), fmt()), good),
        ("two_fmt.wav", riff(fmt(), fmt(), chunk(b"data", data)), good),
        ("rifx.wav", riff(fmt(order=">"), chunk(b"data", PCM16.astype(">i2").tobytes(), order=">"), magic=b"RIFX", order=">"), good),
        ("rf64.wav", riff(ds64, fmt(), chunk(b"data", data, size=0xFFFFFFFF), magic=b"RF64"), good),
        ("bw64.wav", riff(ds64, fmt(), chunk(b"data", data, size=0xFFFFFFFF), magic=b"BW64"), good),
        *((f"size_{size:x}.wav", riff(fmt(), chunk(b"data", data, size=size)), good) for size in (0, 0x7FFFFFFF, 0xFFFFFFFF, len(data) + 9999)),
        ("trailing.wav", riff(fmt(), chunk(b"data", data), odd, chunk(b"id3 ", b"x")), good),
        ("half_frame.wav", riff(fmt(), chunk(b"data", data + b"\x01")), good),
        ("stereo.wav", riff(fmt(channels=2), chunk(b"data", stereo)), {**good, "channels": 2}),
        ("named.mp3", riff(fmt(), chunk(b"data", data)), good),
        ("alaw.wav", encoded("wav", "pcm_alaw"), {**good, "rms": RMS}),
        ("mulaw.wav", encoded("wav", "pcm_mulaw"), good),
        ("adpcm.wav", encoded("wav", "adpcm_ima_wav"), {"kind": "audio", "sample_rate": RATE, "rms": RMS}),
        ("bits12.wav", riff(fmt(bits=12, align=2), chunk(b"data", data)), "media_malformed"),
        ("bits20.wav", riff(fmt(bits=20, align=3), chunk(b"data", data)), "media_malformed"),
        ("f16.wav", riff(fmt(3, bits=16), chunk(b"data", data)), "media_malformed"),
        ("align.wav", riff(fmt(align=4), chunk(b"data", data)), "media_malformed"),
        ("no_frames.wav", riff(fmt(), chunk(b"data", b"")), "media_empty"),
        ("less_than_a_frame.wav", riff(fmt(), chunk(b"data", b"\x01", pad=False)), "media_empty"),
        ("no_data.wav", riff(fmt()), "media_malformed"),
        ("no_fmt.wav", riff(chunk(b"data", data)), "media_malformed"),
        ("short_fmt.wav", riff(chunk(b"fmt ", b"\1\0\1\0"), chunk(b"data", data)), "media_malformed"),
        ("no_channels.wav", riff(fmt(channels=0, align=2), chunk(b"data", data)), "media_malformed"),
        ("many_channels.wav", riff(fmt(channels=65), chunk(b"data", data)), "media_malformed"),
        ("no_rate.wav", riff(fmt(rate=0), chunk(b"data", data)), "media_malformed"),
        ("huge_rate.wav", riff(fmt(rate=655_350), chunk(b"data", data)), "media_malformed"),
        ("cut_header.wav", riff(fmt(), chunk(b"data", data))[:20], "media_malformed"),
    ]  # fmt: skip


def encoded(
    container: str,
    codec: str,
    *,
    rate: int = RATE,
    seconds: float = 1.0,
    channels: int = 1,
    bit_rate: int | None = None,
) -> bytes:
    """The tone through PyAV's encoders."""
    file = io.BytesIO()
    samples = np.resize(
        TONE if rate == RATE else np.sin(2 * np.pi * 440 * np.arange(rate) / rate) * 0.25, int(rate * seconds)
    )
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout="mono" if channels == 1 else "stereo")
        if bit_rate:
            stream.bit_rate = bit_rate
        size = stream.codec_context.frame_size or 1024
        for at in range(0, len(samples), size):
            part = np.rint(samples[at : at + size] * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(
                np.repeat(part[None], 1, 0) if channels == 1 else np.repeat(part, 2)[None],
                format="s16",
                layout="mono" if channels == 1 else "stereo",
            )
            frame.sample_rate, frame.pts = rate, at
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def sounds() -> list[Case]:
    tone = {"kind": "audio", "rms": RMS}
    cases: list[Case] = [
        (f"tone.{name}", encoded(container, codec, rate=rate), {**tone, "sample_rate": rate})
        for name, container, codec, rate in (
            ("mp3", "mp3", "libmp3lame", 44_100),
            ("m4a", "mp4", "aac", 44_100),
            ("aac", "adts", "aac", 44_100),
            ("flac", "flac", "flac", 16_000),
            ("opus", "ogg", "libopus", 48_000),
            ("webm", "webm", "libopus", 48_000),
            ("aiff", "aiff", "pcm_s16be", 16_000),
            ("au", "au", "pcm_s16be", 16_000),
            ("caf", "caf", "pcm_s16be", 16_000),
            ("w64", "w64", "pcm_s16le", 16_000),
        )
    ]
    cases += [
        ("half.flac", encoded("flac", "flac", rate=44_100)[:-3000], {"kind": "audio", "truncated": True}),
        ("mp3_named.wav", encoded("mp3", "libmp3lame", rate=44_100), {**tone, "sample_rate": 44_100}),
        ("junk_then.mp3", b"\0garbage" * 40 + encoded("mp3", "libmp3lame", rate=44_100), {"kind": "audio"}),
        ("long.opus", encoded("ogg", "libopus", rate=48_000, seconds=40, bit_rate=6000), {"kind": "audio", "truncated": True, "soft_tokens": 750}),
    ]  # fmt: skip
    return cases


def picture(mode: str = "RGB", size: tuple[int, int] = (64, 48), color: Any = (200, 100, 50)) -> Image.Image:
    return (
        Image.new("RGB", size, color).convert(mode)
        if mode not in ("I;16", "CMYK")
        else Image.new(mode, size, 0x8000 if mode == "I;16" else (0, 255, 255, 0))
    )


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def chart() -> Image.Image:
    """Red, green / blue, white."""
    image = Image.new("RGB", (96, 64))
    for box, color in (((0, 0), "red"), ((48, 0), "lime"), ((0, 32), "blue"), ((48, 32), "white")):
        image.paste(Image.new("RGB", (48, 32), color), box)
    return image


def turned(orientation: int, format: str) -> bytes:
    """The chart stored so that the tag turns it upright."""
    undo = {1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270}[orientation]  # fmt: skip
    image = chart() if undo is None else chart().transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = (
        {"quality": 95, "subsampling": 0}
        if format == "JPEG"
        else {"lossless": True}
        if format == "WEBP"
        else {}
    )
    return saved(image, format, exif=exif, **options)


def png_claiming(width: int, height: int, depth: int = 8, kind: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)

    def part(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", header)
        + part(b"IDAT", zlib.compress(b"\0" * 100))
        + part(b"IEND", b"")
    )


def images() -> list[Case]:
    orange = {"kind": "image", "width": 64, "height": 48, "mean": (200, 100, 50)}
    clear = Image.new("RGBA", (16, 16), (90, 10, 10, 0))
    palette = picture("P")
    palette.info["transparency"] = bytes([0] * 256)
    frames = [Image.new("RGB", (32, 32), color) for color in ("black", "red", "blue")]
    cases: list[Case] = [
        (f"plain.{name}", saved(picture(), format, **options), orange)
        for name, format, options in (
            ("png", "PNG", {}), ("jpg", "JPEG", {"quality": 95, "subsampling": 0}), ("webp", "WEBP", {"lossless": True}),
            ("gif", "GIF", {}), ("bmp", "BMP", {}), ("tif", "TIFF", {}), ("avif", "AVIF", {"quality": 100}),
        )
    ]  # fmt: skip
    cases += [
        (f"turned{i}.{f.lower()}", turned(i, f), {"kind": "image", "width": 96, "height": 64, "chart": True})
        for f in ("JPEG", "PNG", "WEBP")
        for i in range(1, 9)
    ]
    cases += [
        ("gray.png", saved(picture("L", color=(80, 80, 80)), "PNG"), {**orange, "mean": (80, 80, 80)}),
        ("la.png", saved(picture("LA", color=(80, 80, 80)), "PNG"), {**orange, "mean": (80, 80, 80)}),
        ("one.png", saved(picture("1", color="white"), "PNG"), {**orange, "mean": (255, 255, 255)}),
        ("i16.png", saved(picture("I;16"), "PNG"), {**orange, "mean": (128, 128, 128)}),
        ("i16.tif", saved(picture("I;16"), "TIFF"), {**orange, "mean": (128, 128, 128)}),
        ("cmyk.jpg", saved(picture("CMYK"), "JPEG", quality=95), {**orange, "mean": (255, 0, 0)}),
        ("palette.png", saved(picture("P"), "PNG"), orange),
        ("palette_clear.png", saved(palette, "PNG", transparency=bytes([0] * 256)), {**orange, "mean": (255, 255, 255)}),
        ("clear.png", saved(clear, "PNG"), {"kind": "image", "width": 16, "height": 16, "mean": (255, 255, 255)}),
        ("one_pixel.png", saved(picture(size=(1, 1)), "PNG"), {"kind": "image", "width": 1, "height": 1, "soft_tokens": 256}),
        ("wide.png", saved(picture(size=(499, 1)), "PNG"), {"kind": "image", "width": 499, "height": 1}),
        ("tall.png", saved(picture(size=(1, 499)), "PNG"), {"kind": "image", "width": 1, "height": 499}),
        ("png_named.jpg", saved(picture(), "PNG"), orange),
        *((f"animated.{name}", saved(frames[0], format, save_all=True, append_images=frames[1:], duration=100), {"kind": "image", "frames": 3, "mean": (0, 0, 0)})
          for name, format in (("gif", "GIF"), ("webp", "WEBP"), ("png", "PNG"))),
        ("side.png", png_claiming(8193, 1), "media_too_large"),
        ("pixels.png", png_claiming(8000, 8000), "media_too_large"),
        *((f"bomb{n}.png", png_claiming(n, n, 1), "media_too_large") for n in (16_000, 40_000, 60_000)),
        ("bomb.gif", b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\x02D\x01\0;", "media_too_large"),
        ("half.jpg", saved(picture(size=(640, 480)), "JPEG")[:3000], "media_undecodable"),
        ("half.png", saved(Image.effect_noise((200, 200), 50), "PNG")[:9000], "media_undecodable"),
        ("header.png", saved(picture(), "PNG")[:33], "media_undecodable"),
        ("empty.png", b"", "media_empty"),
        ("text.png", b"hello, world", "media_unsupported"),
        ("page.jpg", b"<!doctype html><html></html>", "media_unsupported"),
        ("vector.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "media_unsupported"),
        ("paper.pdf", b"%PDF-1.7\n", "media_unsupported"),
        ("post.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n", "media_unsupported"),
        ("old.ppm", saved(picture(), "PPM"), "media_unsupported"),
        ("list.m3u8", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "media_unsupported"),
        ("concat.txt", b"ffconcat version 1.0\nfile '/etc/passwd'\n", "media_unsupported"),
        ("session.sdp", b"v=0\no=- 0 0 IN IP4 127.0.0.1\n", "media_unsupported"),
        ("movie.avi", b"RIFF\x24\0\0\0AVI LIST", "media_unsupported"),
    ]  # fmt: skip
    return cases


def clip(container: str = "mp4", codec: str = "libx264", *, count: int = 40, fps: int = 10, size: tuple[int, int] = (64, 48),
         sound: bool = False, options: dict[str, str] | None = None, times: list[float] | None = None) -> bytes:  # fmt: skip
    """Frame i is a shade of red, brighter with i."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options or {}) as output:
        stream: Any = output.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        track: Any = output.add_stream("aac", rate=RATE, layout="mono") if sound else None
        for index in range(count):
            frame = av.VideoFrame.from_image(Image.new("RGB", size, (index * 5 % 256, 0, 0)))
            if times is not None:
                frame.pts, frame.time_base = round(times[index] * 1000), Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if track is not None:
            for at in range(0, RATE, 1024):
                part = av.AudioFrame.from_ndarray(PCM16[None, at : at + 1024], format="s16", layout="mono")
                part.sample_rate, part.pts = RATE, at
                output.mux(track.encode(part))
            output.mux(track.encode(None))
    return file.getvalue()


def clips() -> list[Case]:
    forty = {
        "kind": "video",
        "frames": 40,
        "sampled_frames": 32,
        "width": 64,
        "height": 48,
        "has_sound": False,
    }
    return [
        ("plain.mp4", clip(), forty),
        ("plain.mov", clip("mov"), forty),
        ("plain.mkv", clip("matroska"), forty),
        ("plain.webm", clip("webm", "libvpx"), forty),
        ("fragmented.mp4", clip(options={"movflags": "frag_keyframe+empty_moov"}), forty),
        ("sound.mp4", clip(sound=True), {**forty, "has_sound": True}),
        ("few.mp4", clip(count=5), {**forty, "frames": 5, "sampled_frames": 5}),
        ("one.mp4", clip(count=1), {**forty, "frames": 1, "sampled_frames": 1}),
        ("odd.webm", clip("webm", "libvpx", size=(63, 47)), {**forty, "width": 63, "height": 47}),
        ("cut.webm", clip("webm", "libvpx")[:-400], {"kind": "video", "width": 64}),
        ("no_moov.mp4", clip()[:400], "media_undecodable"),
        ("large.webm", clip("webm", "libvpx", size=(8194, 16), count=2), "media_too_large"),
    ]


def samples() -> list[Case]:
    facts: dict[str, dict[str, Any]] = {
        "ogg_vorbis_44100_stereo.ogg": {
            "kind": "audio",
            "sample_rate": 44_100,
            "channels": 2,
            "frames": 88_200,
        },
        "3gp_amrnb_8k_mono.3gp": {"kind": "audio", "sample_rate": 8000, "frames": 16_000},
        "corrupt_flac_bits.flac": {"kind": "audio", "frames": 5760, "truncated": True},
        "heic_exif_orient6.heic": {"kind": "image", "width": 64, "height": 96},
        "mp4_rotated90_72f.mp4": {"kind": "video", "width": 120, "height": 160, "frames": 72},
    }
    return [(name, (SAMPLES / name).read_bytes(), expected) for name, expected in facts.items()]


def corpus() -> list[Case]:
    return [*wavs(), *sounds(), *images(), *clips(), *samples()]
