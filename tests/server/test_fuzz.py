"""Whatever a body holds, the answer is well-formed, and never a 500. `INGLE_FUZZ` sets how many bodies."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message

from ingle.config import FetchPolicy, MediaConfig, ServerConfig
from ingle.server.app import create_app
from ingle.service.model_pool import ModelPool
from ingle.service.models import TextModel
from support import fuzz
from support.scripted import scripted_model

BODIES = int(os.environ.get("INGLE_FUZZ", "400"))


@pytest.fixture(scope="module")
def model() -> Iterator[TextModel]:
    model = scripted_model(lambda _: 'Hi <|tool_call>call:look{a:1}<tool_call|> {"a": 1}', chunk=8)
    yield model
    model.engine.close()  # type: ignore[attr-defined] # pyright: ignore


async def post(app: Any, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """Through the application, without a socket."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80), "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []
    ended = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    finally:
        ended.set()
    headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:])


def check(dialect: str, body: bytes, status: int, headers: dict[str, str], answer: bytes) -> None:
    problem = f"{dialect} {status} {body[:2000]!r} {answer[:500]!r}"
    assert status in (200, 400, 404, 413, 429), problem
    kind = headers["content-type"]
    if kind.startswith("text/event-stream"):
        events = [e for e in answer.decode().split("\n\n") if e]
        data = [line[6:] for e in events for line in e.split("\n") if line.startswith("data: ")]
        parsed = [json.loads(d) for d in data if d != "[DONE]"]
        assert parsed and all(isinstance(p, dict) for p in parsed), problem
        assert all("server failed" not in d for d in data), problem
        return
    lines = answer.splitlines() if kind.startswith("application/x-ndjson") else [answer]
    for line in lines:
        content = json.loads(line)
        assert isinstance(content, dict), problem
        assert "server failed" not in str(content.get("error")), problem
    if status != 200:
        error = json.loads(answer)["error"]
        message = error if dialect == "ollama" else error["message"]
        assert isinstance(message, str) and 3 < len(message) < 1500, problem


@pytest.mark.parametrize("dialect", fuzz.GOOD)
def test_no_body_breaks_anything(dialect: str, model: TextModel) -> None:
    media = MediaConfig(fetch=FetchPolicy(url_fetch="off"))

    async def main() -> dict[int, int]:
        app = create_app(ModelPool.of(model), ServerConfig(max_body_bytes=10**6), media)
        path, good = fuzz.GOOD[dialect]
        source = random.Random(f"{dialect} {os.environ.get('INGLE_FUZZ_SEED', '1')}")
        counts: dict[int, int] = {}
        for number in range(BODIES):
            body = json.dumps(good).encode() if number == 0 else fuzz.body(source, good)
            status, headers, answer = await post(app, path, body)
            check(dialect, body, status, headers, answer)
            counts[status] = counts.get(status, 0) + 1
        return counts

    counts = asyncio.run(main())
    assert counts.get(400, 0) > BODIES / 5, counts
    if dialect != "embeddings":  # this model makes none
        assert counts.get(200, 0) > BODIES / 20, counts
