"""Every form through the real sandbox, and what it does when decoding goes wrong."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingle.config import MediaConfig
from ingle.errors import EngineError, EngineStopped, MediaRefused
from ingle.media.audio import wav
from ingle.media.audio.decode import SoundLimits, decode_sound
from ingle.media.audio.resample import to_16k
from ingle.media.image.decode import ImageLimits, decode_image
from ingle.media.sandbox import pool as pool_module
from ingle.media.sandbox.pool import Decoded, Sandbox
from ingle.media.settings import inspect_options
from ingle.media.video.decode import ClipLimits, decode_clip
from support import media_corpus as made

CONFIG = MediaConfig()
LIMITS = SoundLimits(600, 2**28)
CORPUS = {name: (data, expected) for name, data, expected in made.corpus()}
MUTATIONS = int(os.environ.get("INGLE_MUTATIONS", "60"))  # of each kind; 2,000 by hand (CONTRIBUTING.md)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    pool = Sandbox(CONFIG)
    yield pool
    pool.close()


def run(sandbox: Sandbox, job: str, data: bytes, options: Any = None) -> Decoded:
    return asyncio.run(sandbox.run(job, data, options or inspect_options(CONFIG)))


@pytest.mark.parametrize("name", list(CORPUS))
def test_corpus(name: str, sandbox: Sandbox) -> None:
    data, expected = CORPUS[name]
    if isinstance(expected, str):
        with pytest.raises(MediaRefused) as refused:
            run(sandbox, "inspect", data)
        assert refused.value.code == expected
        return
    if name.endswith(".heic"):
        pytest.importorskip("pi_heif")
    info = run(sandbox, "inspect", data).info
    facts = dict(expected)
    if (rms := facts.pop("rms", None)) is not None:
        assert info["mono_rms"] == pytest.approx(rms, abs=0.01)
    if (mean := facts.pop("mean", None)) is not None:
        assert info["mean_rgb"] == pytest.approx(mean, abs=4)
    if facts.pop("chart", False):
        rgb = decode_image(data, ImageLimits(8192, 10**8)).rgb.astype(int)
        corners = [rgb[10, 10], rgb[10, -10], rgb[-10, 10], rgb[-10, -10]]
        for corner, color in zip(corners, ([255, 0, 0], [0, 255, 0], [0, 0, 255], [255] * 3), strict=True):
            assert np.abs(corner - color).max() < 12
    assert {key: info[key] for key in facts} == facts


def samples_of(name: str) -> Any:
    return decode_sound(CORPUS[name][0], LIMITS).samples


def test_samples_are_exact() -> None:
    expected = made.PCM16.astype(np.float32) / 32768
    for name in ("pcm16.wav", "pcm24.wav", "pcm32.wav", "ext16.wav", "ext24in32.wav", "rifx.wav", "odd_list.wav", "stereo.wav",
                 "size_0.wav", "data_first.wav", "rf64.wav", "tone.flac", "tone.aiff", "tone.w64"):  # fmt: skip
        assert np.array_equal(samples_of(name), expected), name
    for name in ("f32.wav", "extf32.wav", "f64.wav"):
        assert np.array_equal(samples_of(name), made.TONE), name


def test_floats_are_made_sane() -> None:
    assert wav.sane(np.array([np.nan, np.inf, -np.inf, -7.5, 7.5, 0.5, 1e300])).tolist() == [
        0,
        0,
        0,
        -1,
        1,
        0.5,
        1,
    ]


def test_eight_bits_are_unsigned_and_padding_is_no_sample() -> None:
    data = made.riff(made.fmt(bits=8), made.chunk(b"data", bytes([128]) * 101), made.chunk(b"LIST", b"INFO"))
    assert decode_sound(data, LIMITS).samples.tolist() == [0.0] * 101


def test_of_two_data_chunks_the_last_counts() -> None:
    data = made.riff(made.fmt(), made.chunk(b"data", b"\1\0" * 9), made.chunk(b"data", b"\2\0" * 7))
    assert (decode_sound(data, LIMITS).samples * 32768).tolist() == [2.0] * 7


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_resampling(rate: int) -> None:
    seconds = np.arange(rate) / rate
    tone = (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    out = to_16k(tone, rate)
    assert abs(len(out) - 16_000) <= 1 and out.dtype == np.float32
    ideal = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert np.abs(out[500:15_000] - ideal[500:15_000]).max() < 1e-4
    assert np.array_equal(to_16k(made.TONE, 16_000), made.TONE)


def test_stereo_is_mixed_before_it_is_resampled() -> None:
    left = np.sin(np.arange(48_000) / 20).astype(np.float32) / 2
    stereo = np.stack([left, np.zeros_like(left)], axis=1)
    data = made.riff(
        made.fmt(3, channels=2, rate=48_000, bits=32), made.chunk(b"data", stereo.astype("<f4").tobytes())
    )
    sound = decode_sound(data, LIMITS)
    assert np.array_equal(sound.samples, left / 2)
    assert len(to_16k(sound.samples, 48_000)) == 16_000


def audio_options(**more: Any) -> dict[str, Any]:
    return {**inspect_options(CONFIG), "towers": True, "window": "reference", **more}


def wav_of(samples: int) -> bytes:
    return made.riff(made.fmt(), made.chunk(b"data", np.resize(made.PCM16, samples).tobytes()))


@pytest.mark.parametrize(
    ("seconds", "truncated"), [(29.99, False), (30.0, False), (30.01, True), (31, True), (60.01, True)]
)
def test_thirty_seconds_and_then_a_cut_that_is_told(
    seconds: float, truncated: bool, sandbox: Sandbox
) -> None:
    result = run(sandbox, "audio", wav_of(round(seconds * 16_000)), audio_options())
    assert result.info["truncated"] is truncated
    assert result.info["samples"] == min(round(seconds * 16_000), 480_000)
    assert result.info["soft_tokens"] == 750
    assert result.arrays["mel"].shape[1] == 128


def test_a_cut_does_not_change_what_comes_before_it(sandbox: Sandbox) -> None:
    long = made.encoded("flac", "flac", rate=44_100, seconds=40)
    sound = decode_sound(long, LIMITS)
    whole = to_16k(sound.samples, sound.rate)[:480_000]
    from ingle.media.audio.mel import log_mel

    assert np.array_equal(run(sandbox, "audio", long, audio_options()).arrays["mel"], log_mel(whole)[0])


def test_too_short_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(MediaRefused, match="has 160 samples at 16 kHz, at least 161 are needed"):
        run(sandbox, "audio", wav_of(160), audio_options())
    assert run(sandbox, "audio", wav_of(161), audio_options()).info["soft_tokens"] == 1


def test_a_small_file_with_hours_of_sound_stays_small(sandbox: Sandbox) -> None:
    long = made.encoded("ogg", "libopus", rate=48_000, seconds=300, bit_rate=6000)
    result = run(sandbox, "audio", long, audio_options())
    assert result.info["truncated"] and result.info["soft_tokens"] == 750
    capped = decode_sound(long, SoundLimits(600, 20 * 2**20))
    assert capped.truncated and capped.samples.nbytes <= 20 * 2**20


def test_frames_have_their_own_times() -> None:
    times = [i / 10 for i in range(20)] + [2 + i for i in range(20)]  # variable rate
    data = made.clip("matroska", times=times)
    clip = decode_clip(data, ClipLimits(ImageLimits(8192, 10**8), 1000, 10**10), 10, lambda rgb: rgb)
    assert clip.times == pytest.approx([times[i * 4] for i in range(10)], abs=0.02)
    reds = [int(frame[:, :, 0].mean()) for frame in clip.frames]
    assert reds == sorted(reds) and reds[-1] > reds[0] + 100


def test_animated_pictures_are_short_clips(sandbox: Sandbox) -> None:
    options = {**inspect_options(CONFIG), "budget": 70, "patch": 16}
    for name in ("animated.gif", "animated.webp", "animated.png"):
        result = run(sandbox, "video", CORPUS[name][0], options)
        assert result.info["times"] == [0.0, 0.1, 0.2]
        assert sum(result.info["frame_tokens"]) * 9 == len(result.arrays["patches"])


def test_the_sound_track_of_a_clip(sandbox: Sandbox) -> None:
    options = audio_options(budget=70, patch=16, sound=True)
    result = run(sandbox, "video", CORPUS["sound.mp4"][0], options)
    assert result.info["sound"]["soft_tokens"] in (25, 26)  # AAC frames have 1,024 samples
    assert result.arrays["sound_mel"].shape[1] == 128
    assert "sound" not in run(sandbox, "video", CORPUS["plain.mp4"][0], options).info


def test_limits_of_a_clip() -> None:
    data = CORPUS["plain.mp4"][0]
    image = ImageLimits(8192, 10**8)
    with pytest.raises(MediaRefused, match="has 11 frames, the limit is 10"):
        decode_clip(data, ClipLimits(image, 10, 10**9), 32, lambda rgb: rgb)
    with pytest.raises(MediaRefused, match="the limit is 30720"):
        decode_clip(data, ClipLimits(image, 100, 64 * 48 * 10), 32, lambda rgb: rgb)
    with pytest.raises(MediaRefused, match="not audio"):
        decode_sound(CORPUS["plain.png"][0], LIMITS)
    with pytest.raises(MediaRefused, match="no moving pictures"):
        decode_clip(CORPUS["tone.m4a"][0], ClipLimits(image, 100, 10**9), 32, lambda rgb: rgb)
    with pytest.raises(MediaRefused, match="not an image"):
        decode_image(data, image)


def test_fast_jpeg_is_close_and_covers_the_target() -> None:
    large = made.saved(made.chart().resize((3000, 2000)), "JPEG", quality=90)
    limits = ImageLimits(8192, 10**8)
    fast = decode_image(large, limits, 800).rgb
    assert 800 <= fast.shape[0] < 2000
    assert decode_image(large, limits).rgb.shape == (2000, 3000, 3)


def test_refused_headers_cost_no_memory(sandbox: Sandbox) -> None:
    run(sandbox, "inspect", CORPUS["plain.png"][0])
    fresh = Sandbox(MediaConfig(workers=1))
    try:
        run(fresh, "inspect", CORPUS["plain.png"][0])
        before = fresh.peak_bytes
        for name in ("bomb16000.png", "bomb40000.png", "bomb60000.png", "bomb.gif"):
            with pytest.raises(MediaRefused):
                run(fresh, "inspect", CORPUS[name][0])
        assert fresh.peak_bytes < before + 50 * 2**20
    finally:
        fresh.close()


def mutated(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return data[: rng.randrange(1, len(data))]
    out = bytearray(data)
    if kind == 1:  # flipped bits
        for _ in range(rng.randrange(1, 30)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 2:  # numbers in the header grow
        at = rng.randrange(4, min(len(out), 200))
        out[at : at + 4] = rng.choice(
            [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\0\0"]
        )
    else:  # a piece moves
        start = rng.randrange(len(out))
        piece = out[start : start + rng.randrange(1, 500)]
        at = rng.randrange(len(out))
        out[at:at] = piece
    return bytes(out)


@pytest.mark.parametrize("kind", ["audio", "image", "video"])
def test_damaged_files_cost_nobody_anything(kind: str, sandbox: Sandbox) -> None:
    sources = [
        data for data, expected in CORPUS.values() if isinstance(expected, dict) and expected["kind"] == kind
    ]
    rng = random.Random(f"{kind} 1")
    inputs = [mutated(rng, rng.choice(sources)[:60_000]) for _ in range(MUTATIONS)]
    counts: Counter[str] = Counter()

    async def one(data: bytes) -> None:
        try:
            await sandbox.run("inspect", data, inspect_options(CONFIG))
            counts["decoded"] += 1
        except MediaRefused as error:
            counts[error.code] += 1

    async def main() -> None:
        await asyncio.gather(*(one(data) for data in inputs))

    asyncio.run(main())
    assert sum(counts.values()) == MUTATIONS
    assert counts["decoded"] and len(counts) > 1
    assert sandbox.peak_bytes < CONFIG.decode_memory_bytes
    # And the sandbox goes on.
    assert run(sandbox, "inspect", CORPUS["pcm16.wav"][0]).info["frames"] == made.RATE
    print(kind, dict(counts), f"peak {sandbox.peak_bytes >> 20} MiB")


WORKER = """
import ctypes, os, socket, sys, time
from ingle.media.sandbox.worker import main

def crash(data, options): ctypes.string_at(0)
def hang(data, options): time.sleep(60)
def spin(data, options):
    while True: pass
def hoard(data, options): return {{}}, {{"x": bytearray(2**33)}}
def read(data, options): return {{"text": open(options["path"]).read()}}, {{}}
def write(data, options): open(options["path"], "w").write("x"); return {{}}, {{}}
def connect(data, options):
    socket.create_connection(("127.0.0.1", options["port"]), 1); return {{}}, {{}}
def files(data, options): return {{"fds": [os.dup(0) for _ in range(100)]}}, {{}}
def leave(data, options): os._exit(3)
def ok(data, options): return {{"pid": os.getpid(), "size": len(data)}}, {{}}
JOBS = dict(crash=crash, hang=hang, spin=spin, hoard=hoard, read=read, write=write, connect=connect, files=files, leave=leave, ok=ok)
main(int(sys.argv[1]), lambda: JOBS)
"""


@pytest.fixture
def misbehaving() -> Iterator[Sandbox]:
    config = MediaConfig(workers=1, decode_timeout_s=3, decode_cpu_s=1)
    pool = Sandbox(config, command=[sys.executable, "-I", "-c", WORKER.replace("{{", "{").replace("}}", "}")])
    yield pool
    pool.close()


@pytest.mark.parametrize("job", ["crash", "hang", "spin", "hoard", "files", "leave"])
def test_a_process_that_goes_wrong_is_replaced(job: str, misbehaving: Sandbox) -> None:
    before = run(misbehaving, "ok", b"abc").info
    assert before["size"] == 3
    started = time.monotonic()
    with pytest.raises(MediaRefused) as refused:
        run(misbehaving, job, b"", {"x": 1})
    assert refused.value.code == ("media_timeout" if job == "hang" else "media_undecodable")
    assert time.monotonic() - started < 10
    assert run(misbehaving, "ok", b"").info["size"] == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux keeps these promises")
def test_what_a_process_cannot_do(misbehaving: Sandbox, tmp_path: Path) -> None:
    protections = misbehaving.protections()
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert {"limited memory", "limited open files"} <= set(protections)
    if "no files" in protections:
        for job in ("read", "write"):
            with pytest.raises(MediaRefused) as refused:
                run(misbehaving, job, b"", {"path": str(secret)})
            assert "PermissionError" in refused.value.detail
    if "no network" in protections:
        with pytest.raises(MediaRefused) as refused:
            run(misbehaving, "connect", b"", {"port": 9})
        assert "unreachable" in refused.value.detail or "Permission" in refused.value.detail


def test_a_cancelled_job_ends_its_process(misbehaving: Sandbox) -> None:
    async def main() -> None:
        first = (await misbehaving.run("ok", b"", {})).info["pid"]
        task = asyncio.create_task(misbehaving.run("hang", b"", {}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await misbehaving.run("ok", b"", {})).info["pid"] != first
        with pytest.raises(ProcessLookupError):
            os.kill(first, signal.SIG_DFL)

    asyncio.run(main())


def test_processes_that_cannot_start_are_our_fault() -> None:
    pool = Sandbox(MediaConfig(workers=1), command=[sys.executable, "-c", "raise SystemExit(1)"])
    try:
        with pytest.raises(EngineError, match="did not start"):
            run(pool, "ok", b"")
    finally:
        pool.close()


def test_a_process_that_is_started_while_its_pool_closes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    inside, go_on = threading.Event(), threading.Event()

    class Slow(pool_module._Worker):  # pyright: ignore[reportPrivateUsage]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)
            inside.set()
            assert go_on.wait(20)

    monkeypatch.setattr(pool_module, "_Worker", Slow)
    pool = Sandbox(MediaConfig(workers=2))

    def start() -> None:
        with pytest.raises(EngineStopped):
            pool.start()

    starting = threading.Thread(target=start)
    starting.start()
    assert inside.wait(20)
    pool.close()
    go_on.set()
    starting.join(20)
    assert len(made) == 1 and not made[0].alive
