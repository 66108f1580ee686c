"""The model that comes with Ingle, through the real server: it sees, hears and reads."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from ingle import compose
from ingle.config import ServerConfig
from ingle.service.models import TextModel
from support.drafting import FixedPolicy
from support.served import Running

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def world(monkeypatch_module: pytest.MonkeyPatch) -> Any:
    """The benchmark's module: the tests ask what it asks."""
    monkeypatch_module.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("tiny_gemma4", BENCHMARKS / "tiny_gemma4.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def serve(*options: str) -> Iterator[tuple[str, str]]:
    """(URL, what the server said of itself)"""
    ingle = str(Path(sys.executable).with_name("ingle"))
    command = [ingle, "serve", "tiny-gemma4", "--port", "0", "--prompt-cache", "64MiB", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"serves (\S+) at (\S+)/v1", line)
        assert found is not None
        yield found[2], line
        server.terminate()
        assert server.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def drafting() -> Iterator[tuple[str, str]]:
    yield from serve()


@pytest.fixture(scope="module")
def url(drafting: tuple[str, str]) -> str:
    return drafting[0]


@pytest.fixture(scope="module")
def plain_url() -> Iterator[str]:
    for url, line in serve("--drafter", "none"):
        assert "no drafts" in line
        yield url


def ask(url: str, content: Any, status: int = 200, **more: Any) -> Any:
    body = {
        "model": "tiny-gemma4",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 8,
        **more,
    }
    got = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert got.status_code == status, got.text
    return got.json()


def test_held_out_questions_are_answered_right(url: str, world: Any) -> None:
    results = world.measure(url, "tiny-gemma4", 20, 8)
    for kind in ("image", "audio", "video"):
        row = results[kind]
        assert row["right"] >= 0.95 * row["asked"], (kind, results)


def test_speed_changes_no_answer(url: str, world: Any) -> None:
    """Log-probabilities of the same questions one by one and all at once, fresh and from the caches."""
    questions = world.questions(3, seed=77)
    more = {"logprobs": True, "top_logprobs": 2}

    def logprobs(question: Any) -> Any:
        got = ask(url, world.parts(question), **more)["choices"][0]
        return got["message"]["content"], got["logprobs"]

    alone = [logprobs(question) for question in questions]
    with world.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(logprobs, questions))
    assert together == alone


def test_the_second_turn_encodes_nothing_again(url: str, world: Any) -> None:
    question = next(q for q in world.questions(1, seed=78) if q.kind == "image")
    content = world.parts(question)
    first = ask(url, content)["choices"][0]["message"]["content"]

    def encoded() -> int:
        text = httpx2.get(f"{url}/metrics").text
        found = re.search(r"^ingle_encoded_media_total\{.*\} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    before = encoded()
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "What colour is the shape?"},
    ]
    got = ask(url, content, messages=messages)
    assert encoded() == before
    assert got["usage"]["prompt_tokens_details"]["image_tokens"] > 0


def test_a_picture_too_long_for_the_model_is_refused(url: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (4000, 40)).save(out, "PNG")
    part = {
        "type": "image_url",
        "image_url": {
            "url": f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}",
            "detail": "high",
        },
    }
    error = ask(url, [part], status=400)["error"]
    assert error["code"] == "media_too_large" and "256" in error["message"]
    assert error["param"] == "messages[0].content[0]"
    assert ask(url, "What is 1 plus 1?")["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def always_drafting() -> Iterator[str]:
    """The same pair, drafting three tokens whatever the clock says."""
    bundled = Path(compose.__file__).parent / "bundled"
    drafter = bundled / "tiny-gemma4-assistant"
    loaded = compose.load(bundled / "tiny-gemma4", name="tiny-gemma4", drafter=drafter)
    assert loaded.engine.speculation is not None
    loaded.engine.speculation.policy = FixedPolicy([3])  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
    model = TextModel.open(loaded.name, loaded.text, loaded.engine)
    running = Running(ServerConfig(port=0), model=model)
    yield running.url
    running.stop()


def test_it_drafts_and_says_so(drafting: tuple[str, str], always_drafting: str, plain_url: str) -> None:
    assert "assistant tiny-gemma4-assistant, n-gram look-up" in drafting[1]
    answer, plain = (ask(url, "Count from 17.", max_tokens=60) for url in (always_drafting, plain_url))
    assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["accepted_tokens"] < details["drafted_tokens"]
    assert plain["usage"]["completion_tokens_details"]["drafted_tokens"] == 0
    metrics = httpx2.get(f"{always_drafting}/metrics").text
    for what in ("draft", "accepted"):
        found = re.search(rf"ingle_spec_decode_num_{what}_tokens_total{{.*}} (\S+)", metrics)
        assert found is not None and float(found[1]) > 0
    assert 'ingle_drafter_info{drafter="assistant tiny-gemma4-assistant, n-gram look-up"' in metrics


@pytest.mark.parametrize("stop", ["21", " 2", "2 23", "5", "8"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_among_accepted_drafts(
    always_drafting: str, plain_url: str, stop: str, stream: bool
) -> None:
    """Tokens behind it that the engine had accepted by then are neither shown nor counted."""
    got: list[Any] = []
    for where in (always_drafting, plain_url):
        body = {
            "model": "tiny-gemma4", "messages": [{"role": "user", "content": "Count from 17."}], "temperature": 0,
            "max_tokens": 60, "stop": stop, "logprobs": True, "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }  # fmt: skip
        answer = httpx2.post(f"{where}/v1/chat/completions", json=body, timeout=60)
        if stream:
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            chunks = [json.loads(line) for line in lines]
            text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
            got.append((text, chunks[-1]["usage"]["completion_tokens"]))
        else:
            choice = answer.json()["choices"][0]
            got.append((choice, answer.json()["usage"]["completion_tokens"]))
    assert got[0] == got[1]
