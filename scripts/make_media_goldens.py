"""Goldens of Gemma 4's features, made by the reference: transformers 5.24.0 with torch 2.13.0 (CPU).

    python scripts/make_media_goldens.py tests/media/goldens

Wants an environment of its own with transformers, torch, torchvision, pillow and numpy; never needed
to run Ingle or its tests. What is too large to keep is kept as a SHA-256 of its bytes.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

_library = torch.library.Library("torchvision", "DEF")  # a CUDA build beside CPU torch misses these operators
for _name in ("nms", "qnms"):
    try:
        _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:
        break

from transformers import Gemma4AudioFeatureExtractor, Gemma4VideoProcessor  # noqa: E402
from transformers.models.gemma4.image_processing_pil_gemma4 import (  # noqa: E402
    Gemma4ImageProcessorPil,
    get_aspect_ratio_preserving_size,
)
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (  # noqa: E402
    Gemma4UnifiedAudioFeatureExtractor,
)
from transformers.models.gemma4_unified.image_processing_gemma4_unified import (  # noqa: E402
    Gemma4UnifiedImageProcessor,
)
from transformers.video_utils import VideoMetadata  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
from ingle.media.audio.windows import WINDOWS  # noqa: E402 # stored constants

SIZES = [
    (224, 224),
    (480, 640),
    (1080, 1920),
    (336, 1344),
    (100, 3000),
    (3000, 100),
    (1, 1),
    (10, 2000),
    (37, 53),
]
BUDGETS = (70, 140, 280, 560, 1120)


def picture(height, width):
    """The same in tests/media/test_features.py."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 7 + y * 3) % 256, (x * x // 5 + y) % 256, (x ^ y) % 256], axis=-1).astype(np.uint8)


def clips():
    """The same in tests/media/test_features.py."""
    noise = np.random.default_rng(7).standard_normal(480_000 + 16_000).astype(np.float32)
    time = np.arange(32_000) / 16_000
    chirp = (0.8 * np.sin(2 * np.pi * (50 * time + 1950 * time**2 / 2))).astype(np.float32)
    short = {f"noise_{n}": noise[:n] * np.float32(0.2) for n in (161, 640, 641, 1600, 16_001, 21_920)}
    return {"silence": np.zeros(16_000, np.float32), "chirp": chirp, **short, "noise_31s": noise}


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    extractor = Gemma4AudioFeatureExtractor()
    audio = {}
    for window in ("reference", "float32"):
        if window == "float32":
            extractor.window = WINDOWS[window]
        for name, samples in clips().items():
            out = extractor([samples], return_tensors="np")
            features = np.asarray(out["input_features"][0])
            mask = np.asarray(out["input_features_mask"][0]).astype(bool)
            tokens = int(mask[::2][::2].sum())
            audio[f"{window}/{name}"] = [list(features.shape), int(mask.sum()), tokens, digest(features)]
    unified = Gemma4UnifiedAudioFeatureExtractor()
    for name, samples in clips().items():
        out = unified([samples[:480_000]], return_tensors="np")["input_features"][0]
        audio[f"unified/{name}"] = [list(out.shape), digest(np.asarray(out, np.float32))]
    images = {}
    for height, width in SIZES:
        for budget in BUDGETS:
            got = get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
            images[f"{height}x{width}/{budget}"] = list(got)
    for height, width in [(120, 200), (64, 64), (333, 500), (30, 400)]:
        for budget in (70, 280):
            out = Gemma4ImageProcessorPil(max_soft_tokens=budget)(
                images=[picture(height, width)], return_tensors="np"
            )
            count = int(np.asarray(out["num_soft_tokens_per_image"])[0])
            values = np.asarray(out["pixel_values"][0], np.float32)
            positions = np.asarray(out["image_position_ids"][0])
            assert not values[count * 9 :].any() and (positions[count * 9 :] == -1).all()
            images[f"patches/{height}x{width}/{budget}"] = [
                count,
                digest(values[: count * 9]),
                digest(positions[: count * 9].astype(np.int32)),
            ]
    # 96 x 144 pixels are 6 soft tokens: scaled by torchvision there, so only a size that needs no scaling is exact.
    exact = Gemma4UnifiedImageProcessor(max_soft_tokens=70)
    shape = get_aspect_ratio_preserving_size(300, 420, 16, 630, 3)
    out = exact(images=[picture(*shape)], return_tensors="np")
    count = int(np.asarray(out["num_soft_tokens_per_image"])[0])
    images["unified"] = [
        list(shape),
        count,
        digest(np.asarray(out["pixel_values"][0][:count], np.float32)),
        digest(np.asarray(out["image_position_ids"][0][:count]).astype(np.int32)),
    ]
    processor = Gemma4VideoProcessor()
    sampled = {}
    for total in (32, 33, 40, 64, 100, 127, 750, 1000, 3001):
        metadata = VideoMetadata(total_num_frames=total, fps=25.0, duration=total / 25, frames_indices=None)
        sampled[total] = [int(i) for i in processor.sample_frames(metadata, num_frames=32)]
    frames = np.stack([np.roll(picture(48, 80), i, axis=1) for i in range(40)])
    metadata = VideoMetadata(total_num_frames=40, fps=10.0, duration=4.0, frames_indices=None)
    out = processor(videos=[frames], video_metadata=[metadata], return_tensors="pt", return_metadata=True)
    times = [float(t) for t in out["video_metadata"][0].timestamps]
    count = int(out["num_soft_tokens_per_video"][0])
    first = np.asarray(out["pixel_values_videos"][0][: count * 9])
    np.savez_compressed(folder / "video.npz", first=np.rint(first * 255).astype(np.uint8))
    video = {"indices": sampled, "times": times, "soft_tokens": count}
    (folder / "features.json").write_text(
        json.dumps({"audio": audio, "images": images, "video": video}, indent=0) + "\n"
    )


main(Path(sys.argv[1]))
