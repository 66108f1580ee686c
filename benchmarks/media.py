"""Ingle's media preprocessing beside the reference processors, interleaved in one process.

    python benchmarks/media.py [--rounds 7]

Wants an environment with transformers, torch, torchvision, pillow, av, soxr and numpy, and Ingle's
`src` on PYTHONPATH: Ingle's side is the decoding job itself, as the sandbox runs it.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    try:
        _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:
        break

from transformers import Gemma4AudioFeatureExtractor, Gemma4ImageProcessor, Gemma4VideoProcessor  # noqa: E402
from transformers.audio_utils import load_audio  # noqa: E402
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil  # noqa: E402
from transformers.video_utils import VideoMetadata  # noqa: E402

from ingle.config import MediaConfig  # noqa: E402
from ingle.media import jobs  # noqa: E402
from ingle.media.audio.mel import log_mel  # noqa: E402
from ingle.media.settings import limits  # noqa: E402

OPTIONS = {
    "limits": limits(MediaConfig()),
    "budget": 280,
    "patch": 16,
    "fast_jpeg": False,
    "frames": 32,
    "towers": True,
    "window": "reference",
}


def jpeg() -> bytes:
    y, x = np.mgrid[:3000, :4000]
    noise = np.random.default_rng(0).integers(0, 40, (3000, 4000, 3))
    picture = (np.stack([x // 16, y // 12, (x + y) // 28], -1) + noise).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=88)
    return file.getvalue()


def mp3(samples: Any) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as output:
        stream = output.add_stream("libmp3lame", rate=44_100, layout="mono")
        for at in range(0, len(samples), 1152):
            part = (samples[None, at : at + 1152] * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="mono")
            frame.sample_rate, frame.pts = 44_100, at
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def mp4() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        for index in range(250):
            picture = np.zeros((480, 640, 3), np.uint8)
            picture[:, index : index + 200] = (index, 120, 200)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    tone = 0.3 * np.random.default_rng(1).standard_normal(480_000).astype(np.float32)
    picture, sound, film = jpeg(), mp3(0.3 * np.sin(np.arange(30 * 44_100) / 9)), mp4()
    extractor = Gemma4AudioFeatureExtractor()
    torchvision, pillow, video = Gemma4ImageProcessor(), Gemma4ImageProcessorPil(), Gemma4VideoProcessor()

    def reference_video() -> Any:
        with av.open(io.BytesIO(film)) as container:
            total = container.streams.video[0].frames
            wanted = {i * total // 32 for i in range(32)}
            frames = [
                f.to_ndarray(format="rgb24") for i, f in enumerate(container.decode(video=0)) if i in wanted
            ]
        metadata = VideoMetadata(total_num_frames=32, fps=3.2, duration=10, frames_indices=list(range(32)))
        return video(
            videos=[np.stack(frames)], video_metadata=[metadata], do_sample_frames=False, return_tensors="pt"
        )

    def opened() -> Image.Image:
        return Image.open(io.BytesIO(picture)).convert("RGB")

    def reference_audio() -> Any:
        with open("/dev/shm/ingle-bench.mp3", "wb") as file:
            file.write(sound)
        return extractor([load_audio("/dev/shm/ingle-bench.mp3", sampling_rate=16_000)])

    film_options = {**OPTIONS, "budget": 70}
    cases: list[tuple[str, Callable[[], Any], dict[str, Callable[[], Any]]]] = [
        (
            "12 MP JPEG",
            lambda: jobs.image(memoryview(picture), OPTIONS),
            {
                "torchvision": lambda: torchvision(images=[opened()]),
                "Pillow": lambda: pillow(images=[opened()]),
            },
        ),
        ("30 s mp3", lambda: jobs.audio(memoryview(sound), OPTIONS), {"librosa": reference_audio}),
        ("30 s log-mel", lambda: log_mel(tone), {"numpy": lambda: extractor([tone])}),
        (
            "10 s mp4, 640 x 480",
            lambda: jobs.video(memoryview(film), film_options),
            {"PyAV + torchvision": reference_video},
        ),
    ]
    print("| input | Ingle, ms | reference, ms | times as fast |\n|---|---|---|---|")
    for name, ours, peers in cases:
        runs: dict[str, list[float]] = {"": [], **{peer: [] for peer in peers}}
        for _ in range(rounds + 1):
            for peer, work in [("", ours), *peers.items()]:
                started = time.perf_counter()
                work()
                runs[peer].append(1e3 * (time.perf_counter() - started))
        medians = {peer: statistics.median(times[1:]) for peer, times in runs.items()}
        mine = medians.pop("")
        others = ", ".join(f"{value:.1f} ({peer})" for peer, value in medians.items())
        ratios = ", ".join(f"{value / mine:.2f}" for value in medians.values())
        print(f"| {name} | {mine:.1f} | {others} | {ratios} |")


main()
