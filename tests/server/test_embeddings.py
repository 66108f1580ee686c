"""Embeddings: the pooled hidden states of the model itself, whatever else the engine does; and ids to text."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import mlx.core as mx
import numpy as np
import pytest

from ingle import compose
from ingle.config import EngineConfig, ServerConfig
from ingle.contracts.graph import Phase, PhaseGroup
from ingle.contracts.request import Pooling
from ingle.forward.packed import forward
from ingle.service.embeddings import embed
from ingle.service.models import TextModel
from ingle.weights.checkpoint import open_checkpoint
from support.scripted import TINY
from support.served import Running

TEXTS = ["a", "The quick brown fox. " * 12, [7, 8, 9], "Hé 👋", "b " * 90]


def model(pooling: Pooling | None, window: int = 64, folder: Path = TINY) -> TextModel:
    config = EngineConfig(max_rows=3, window_tokens=window, memory_bytes=2**30)
    loaded = compose.load(folder, name="tiny", config=config)
    return TextModel.open("tiny", loaded.text, loaded.engine, pooling)


def close(model: TextModel) -> None:
    model.engine.close()  # type: ignore[attr-defined] # pyright: ignore


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_is_what_the_graph_gives(pooling: Pooling) -> None:
    graph, _ = compose.load_graph(TINY)
    vectors: list[Any] = []
    for window in (256, 7):
        one = model(pooling, window)
        done = asyncio.run(embed(one, TEXTS))
        vectors.append(done.vectors)
        assert done.tokens > 100
        tokenizer = one.tokenizer
        close(one)
    for mine, cut in zip(*vectors, strict=True):
        np.testing.assert_array_equal(mine, cut)  # the same bits, however prompts were cut into windows
    for text, mine in zip(TEXTS, vectors[0], strict=True):
        ids = text if isinstance(text, list) else tokenizer.prompt_ids(text)
        group = PhaseGroup(Phase.WINDOW, mx.array([ids], mx.int32), graph.make_state(1))
        hidden = np.array(forward(graph, [group], row_invariant=True)[0][0], np.float64)
        expected = hidden.mean(0) if pooling == "mean" else hidden[-1]
        np.testing.assert_allclose(mine, expected / np.linalg.norm(expected), atol=2e-6)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(ServerConfig(port=0), model=model("mean"))
    yield running
    running.stop()


def test_over_http(running: Running) -> None:
    client = running.client()
    both = client.embeddings.create(model="tiny", input=["one", "two"])
    alone = client.embeddings.create(model="tiny", input="two", encoding_format="float")
    assert [d.index for d in both.data] == [0, 1] and both.usage.prompt_tokens == both.usage.total_tokens > 2
    np.testing.assert_allclose(both.data[1].embedding, alone.data[0].embedding, atol=1e-7)
    short = client.embeddings.create(model="tiny", input="two", dimensions=8).data[0].embedding
    expected = np.array(alone.data[0].embedding[:8])
    np.testing.assert_allclose(short, expected / np.linalg.norm(expected), atol=1e-6)
    raw = httpx2.post(
        running.url + "/v1/embeddings", json={"model": "tiny", "input": "two", "encoding_format": "base64"}
    )
    decoded = np.frombuffer(base64.b64decode(raw.json()["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, alone.data[0].embedding, atol=1e-7)
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=3
    )
    assert answer.usage is not None and answer.usage.completion_tokens <= 3, "the same engine still chats"


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"input": []}, "input", "non-empty list"),
        ({"input": ""}, "input", ""),
        ({"input": [""]}, "input", ""),
        ({"input": [5, 10**6]}, "input", "token id 1000000"),
        ({"input": ["a", 5]}, "input", "input[1]"),
        ({"input": {"a": 1}}, "input", "a string"),
        ({"input": ["x"] * 3000}, "input", "limit is 2048"),
        ({"input": "x " * 9000}, "input", "the limit is"),
        ({"dimensions": 0}, "dimensions", ">= 1"),
        ({"dimensions": 10**6}, "dimensions", "vectors have"),
        ({"encoding_format": "hex"}, "encoding_format", "hex"),
        ({"model": "other"}, "model", "not served"),
    ],
)
def test_bad_input(running: Running, change: dict[str, Any], param: str, message: str) -> None:
    answer = httpx2.post(running.url + "/v1/embeddings", json={"model": "tiny", "input": "x", **change})
    if change == {"input": ""} or change == {"input": [""]}:
        assert answer.status_code in (200, 400)  # this model begins every prompt with a token of its own
        return
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert error["param"] == param and message in error["message"]


def test_a_model_that_does_not_say_how_makes_none() -> None:
    running = Running(ServerConfig(port=0), model=model(None))
    answer = httpx2.post(running.url + "/v1/embeddings", json={"model": "tiny", "input": "x"})
    assert answer.status_code == 400 and "--pooling mean or last" in answer.json()["error"]["message"]
    running.stop()


@pytest.mark.parametrize(
    ("modules", "settings", "pooling"),
    [
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_mean_tokens": True}, "mean"),
        (["Transformer", "Pooling"], {"pooling_mode_lasttoken": True}, "last"),
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}, None),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, None),
    ],
)
def test_what_a_folder_says_of_pooling(
    tmp_path: Path, modules: list[str], settings: Any, pooling: str | None
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    kinds = [
        {"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling" if kind == "Pooling" else ""}
        for kind in modules
    ]
    (folder / "modules.json").write_text(json.dumps(kinds))
    text = open_checkpoint(folder).text
    assert text is not None and text.pooling == pooling


def test_ids_and_their_text(running: Running) -> None:
    there = running.url + "/tokenize"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hé 👋"}]}
    ids = httpx2.post(there, json=chat).json()["tokens"]
    fewer = httpx2.post(there, json={**chat, "add_generation_prompt": False}).json()["tokens"]
    assert ids[: len(fewer)] == fewer and len(ids) > len(fewer)
    text = httpx2.post(running.url + "/detokenize", json={"model": "tiny", "tokens": ids}).json()["prompt"]
    assert text.startswith("<bos><|turn>user\nHé 👋<turn|>")
    again = httpx2.post(there, json={"model": "tiny", "prompt": text}).json()["tokens"]
    assert again == ids
    wrong = httpx2.post(running.url + "/detokenize", json={"model": "tiny", "tokens": [5, 10**6]})
    assert wrong.status_code == 400 and "ids 0 to" in wrong.json()["error"]["message"]
