"""The default model, in its own codes, says what the reference says with dequantised weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle import compose
from ingle.config import EngineConfig
from ingle.contracts.request import Request, SamplingParams
from ingle.engine.loop import Engine
from ingle.service.models import TextModel
from ingle.text.special import encode_chat
from support.collect import Collector

pytestmark = pytest.mark.model
GOLDENS = json.loads((Path(__file__).parent / "goldens" / "smollm2.json").read_text())
TIE = 1e-3  # a top-2 margin below it is a tie within rounding


@pytest.fixture(scope="module")
def loaded(default_model_path: Path) -> Iterator[compose.Loaded]:
    loaded = compose.load(default_model_path, name="smollm2", config=EngineConfig(window_tokens=32))
    yield loaded
    loaded.engine.close()


def agree(tokens: list[int], golden: dict[str, list]) -> None:
    """Equal up to the first tie of the reference."""
    expected = golden["greedy"]
    first_tie = next((i for i, m in enumerate(golden["margins"]) if m < TIE), len(expected))
    assert tokens[:first_tie] == expected[:first_tie]
    assert first_tie > 10


def run_all(engine: Engine) -> list[list[int]]:
    got = Collector()
    for i, golden in enumerate(GOLDENS):
        sampling = SamplingParams(temperature=0.0, max_tokens=len(golden["greedy"]))
        engine.submit(Request(id=str(i), prompt=tuple(golden["prompt"]), sampling=sampling), got)
    for i in range(len(GOLDENS)):
        assert got.wait(str(i), timeout_s=300).reason == "length"
    return [got.tokens(str(i)) for i in range(len(GOLDENS))]


def test_greedy_tokens_of_a_batch_equal_the_reference(loaded: compose.Loaded) -> None:
    for tokens, golden in zip(run_all(loaded.engine), GOLDENS, strict=True):
        agree(tokens, golden)


def test_prompts_are_rendered_like_the_reference(loaded: compose.Loaded) -> None:
    model = TextModel.open("m", loaded.text, loaded.engine)
    for golden in GOLDENS:
        messages = [{"role": "user", "content": golden["question"]}]
        assert encode_chat(model.tokenizer, model.template, messages) == golden["prompt"]
