"""Features against the reference's own, bit for bit where it is exact (scripts/make_media_goldens.py)."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingle.errors import MediaRefused
from ingle.media.audio import mel, tokens
from ingle.media.audio.windows import WINDOWS
from ingle.media.image import gemma4
from ingle.media.video.decode import chosen_indices
from ingle.media.video.labels import time_label

FOLDER = Path(__file__).parent / "goldens"
GOLDENS = json.loads((FOLDER / "features.json").read_text())


def digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def picture(height: int, width: int) -> Any:
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 7 + y * 3) % 256, (x * x // 5 + y) % 256, (x ^ y) % 256], axis=-1).astype(np.uint8)


def clips() -> dict[str, Any]:
    noise = np.random.default_rng(7).standard_normal(480_000 + 16_000).astype(np.float32)
    time = np.arange(32_000) / 16_000
    chirp = (0.8 * np.sin(2 * np.pi * (50 * time + 1950 * time**2 / 2))).astype(np.float32)
    short = {f"noise_{n}": noise[:n] * np.float32(0.2) for n in (161, 640, 641, 1600, 16_001, 21_920)}
    return {"silence": np.zeros(16_000, np.float32), "chirp": chirp, **short, "noise_31s": noise}


@pytest.mark.parametrize("window", ["reference", "float32"])
@pytest.mark.parametrize("name", list(clips()))
def test_log_mel_is_the_references_bit_for_bit(name: str, window: str) -> None:
    samples = clips()[name]
    shape, real, count, expected = GOLDENS["audio"][f"{window}/{name}"]
    features, valid = mel.log_mel(samples, window)
    assert features.dtype == np.float32 and list(features.shape) == shape
    assert valid == real == tokens.mel_frames(min(len(samples), 480_000))
    assert tokens.soft_tokens(len(samples)) == count
    assert digest(features) == expected


def test_the_two_windows_differ_where_it_is_known() -> None:
    assert int((WINDOWS["reference"] != WINDOWS["float32"]).sum()) == 219
    samples = clips()["chirp"]
    difference = np.abs(mel.log_mel(samples)[0] - mel.log_mel(samples, "float32")[0]).max()
    assert 1e-5 < difference < 5e-3


@pytest.mark.parametrize("name", list(clips()))
def test_raw_frames_are_the_references(name: str) -> None:
    samples = clips()[name]
    shape, expected = GOLDENS["audio"][f"unified/{name}"]
    frames = mel.raw_frames(samples)
    assert list(frames.shape) == shape and digest(frames) == expected
    assert tokens.unified_soft_tokens(len(samples)) == len(frames)


def test_soft_tokens_are_the_rows_of_two_convolutions() -> None:
    for samples in [*range(4000), 16_000, 16_001, 479_999, 480_000, 480_001, 10**7]:
        frames = max(0, (min(samples, 480_000) + 160 - 321) // 160 + 1)
        mask = np.ones(frames, bool)[::2][::2]
        assert tokens.soft_tokens(samples) == min(len(mask), 750)
    assert tokens.soft_tokens(tokens.MIN_SAMPLES - 1) == 0
    assert tokens.soft_tokens(tokens.MIN_SAMPLES) == 1


def test_the_published_rule_differs_for_a_quarter_of_all_lengths() -> None:
    assert (tokens.soft_tokens(16_001), tokens.published_soft_tokens(16_001)) == (25, 26)
    assert (tokens.soft_tokens(641), tokens.published_soft_tokens(641)) == (1, 2)
    lengths = range(161, 480_000, 7)
    differing = sum(tokens.soft_tokens(n) != tokens.published_soft_tokens(n) for n in lengths)
    assert 0.2 < differing / len(lengths) < 0.3


def test_target_sizes_are_the_references() -> None:
    for key, expected in GOLDENS["images"].items():
        if key.startswith("patches") or key == "unified":
            continue
        size, budget = key.split("/")
        height, width = map(int, size.split("x"))
        assert list(gemma4.target_size(height, width, int(budget))) == expected


@pytest.mark.parametrize("key", [k for k in GOLDENS["images"] if k.startswith("patches")])
def test_patches_are_the_references_bit_for_bit(key: str) -> None:
    count, expected, expected_positions = GOLDENS["images"][key]
    _, size, budget = key.split("/")
    height, width = map(int, size.split("x"))
    values, positions = gemma4.patches(gemma4.scaled(picture(height, width), int(budget)))
    assert len(values) == count * 9 == gemma4.soft_tokens(height, width, int(budget)) * 9
    assert values.dtype == np.float32 and digest(values) == expected
    assert digest(positions) == expected_positions


def test_merged_patches_of_the_model_without_towers() -> None:
    (height, width), count, expected, expected_positions = GOLDENS["images"]["unified"]
    values, positions = gemma4.patches(gemma4.scaled(picture(height, width), 70), gemma4.CELL)
    assert values.shape == (count, 6912)
    assert digest(values) == expected and digest(positions) == expected_positions


@pytest.mark.parametrize("budget", gemma4.BUDGETS)
def test_placeholders_equal_the_towers_rows_for_every_size(budget: int) -> None:
    sizes = [(h, w) for h in range(1, 65) for w in range(1, 65)]
    sizes += [(1, n) for n in (65, 1000, 8192)] + [(n, 1) for n in (65, 1000, 8192)]
    for height, width in sizes:
        rows, columns = gemma4.target_size(height, width, budget)
        assert rows % 48 == columns % 48 == 0 and rows * columns <= budget * 48 * 48
        pooled = math.ceil(rows / 16 / 3) * math.ceil(columns / 16 / 3)  # cells of 3 x 3 patches
        assert gemma4.soft_tokens(height, width, budget) == pooled >= 1


@pytest.mark.parametrize("size", [(1, 1), (1, 64), (64, 1), (499, 1), (1, 499), (2, 8192)])
def test_patches_of_extreme_shapes(size: tuple[int, int]) -> None:
    values, positions = gemma4.patches(gemma4.scaled(picture(*size), 70))
    assert len(values) == len(positions) == 9 * gemma4.soft_tokens(*size, 70)


def test_frames_are_chosen_as_the_reference_does() -> None:
    for total, expected in GOLDENS["video"]["indices"].items():
        assert chosen_indices(int(total), 32) == expected
    assert chosen_indices(5, 32) == [0, 1, 2, 3, 4]
    assert chosen_indices(0, 32) == []


def test_frame_times_and_tokens() -> None:
    times = GOLDENS["video"]["times"]
    assert times == [i / 10 for i in chosen_indices(40, 32)]
    assert [time_label(t) for t in (0, 0.99, 61.5, 3600)] == ["00:00", "00:00", "01:01", "60:00"]
    assert GOLDENS["video"]["soft_tokens"] == gemma4.soft_tokens(48, 80, 70)
    first = np.load(FOLDER / "video.npz")["first"].astype(int)
    ours = np.rint(gemma4.patches(gemma4.scaled(picture(48, 80), 70))[0] * 255).astype(int)
    assert np.abs(first - ours).max() <= 2  # torchvision's scaling against Pillow's


def test_a_shape_that_fits_no_budget_is_refused() -> None:
    with pytest.raises(MediaRefused, match="too small"):
        gemma4.target_size(100, 100, 0)
