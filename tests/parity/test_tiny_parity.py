"""Tiny random checkpoints give the reference's logits, however the prompt is cut and batched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ingle import compose
from ingle.contracts.cache import RowState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup
from ingle.contracts.request import Request, SamplingParams
from ingle.forward.packed import forward
from ingle.weights.checkpoint import open_checkpoint
from support.collect import Collector

HERE = Path(__file__).parent
NAMES = ("llama", "llama3", "llama_bias", "gemma3", "qwen3", "qwen3_moe")
TOLERANCE = 1e-5  # absolute, on logits of standard deviation about 1


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def golden(name: str) -> dict[str, Any]:
    return dict(np.load(HERE / "goldens" / f"{name}.npz"))


@pytest.fixture(scope="module")
def graph(name: str) -> ModelGraph:
    return compose.load_graph(HERE / "fixtures" / name, "float32")[0]


def hidden_of(graph: ModelGraph, ids: np.ndarray, borders: list[int]) -> mx.array:
    """Final hidden states of one prompt computed in windows."""
    state = graph.make_state(1)
    parts = [
        forward(graph, [PhaseGroup(Phase.WINDOW, mx.array(ids[None, a:b]), state)])[0]
        for a, b in zip([0, *borders], [*borders, len(ids)], strict=True)
    ]
    return mx.concatenate(parts, axis=1)[0]


def check(graph: ModelGraph, hidden: mx.array, expected: np.ndarray) -> None:
    error = np.abs(np.array(graph.logits(hidden)) - expected).max()
    assert error < TOLERANCE


@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_whole_prompts(graph: ModelGraph, golden: dict[str, Any], prompt: int) -> None:
    check(graph, hidden_of(graph, golden[f"ids{prompt}"], []), golden[f"logits{prompt}"])


@pytest.mark.parametrize("border", range(1, 40))
def test_two_windows_cut_anywhere(graph: ModelGraph, golden: dict[str, Any], border: int) -> None:
    check(graph, hidden_of(graph, golden["ids2"], [border]), golden["logits2"])


def test_token_by_token_past_the_window(graph: ModelGraph, golden: dict[str, Any]) -> None:
    check(graph, hidden_of(graph, golden["ids2"], list(range(1, 40))), golden["logits2"])


def test_ragged_rows_in_one_batch(graph: ModelGraph, golden: dict[str, Any]) -> None:
    """Rows that have seen 2, 9 and 37 tokens decode their next three together."""
    seen = [len(golden[f"ids{i}"]) - 3 for i in range(3)]
    rows: list[RowState] = []
    for i, length in enumerate(seen):
        state = graph.make_state(1)
        forward(graph, [PhaseGroup(Phase.WINDOW, mx.array(golden[f"ids{i}"][None, :length]), state)])
        rows.append(state)
    batch = rows[0].select([0], rows[1:])
    for step in range(3):
        ids = mx.array([[int(golden[f"ids{i}"][seen[i] + step])] for i in range(3)])
        hidden = forward(graph, [PhaseGroup(Phase.DECODE, ids, batch)])[0]
        for i in range(3):
            check(graph, hidden[i], golden[f"logits{i}"][seen[i] + step][None])


def test_both_dialects_give_one_configuration(name: str, tmp_path: Path) -> None:
    source = HERE / "fixtures" / name
    shutil.copy(source / "model.safetensors", tmp_path)
    shutil.copy(source / "config.older.json", tmp_path / "config.json")
    assert open_checkpoint(tmp_path).config == open_checkpoint(source).config


def test_greedy_tokens_through_the_engine(name: str, golden: dict[str, Any]) -> None:
    engine = compose.load(HERE / "fixtures" / name, name=name).engine
    got = Collector()
    greedy = SamplingParams(temperature=0.0, max_tokens=16)
    for i in range(3):
        engine.submit(Request(id=f"p{i}", prompt=tuple(golden[f"ids{i}"].tolist()), sampling=greedy), got)
    for i in range(3):
        assert got.wait(f"p{i}").reason == "length"
        assert got.tokens(f"p{i}") == golden[f"greedy{i}"].tolist()
    engine.close()
