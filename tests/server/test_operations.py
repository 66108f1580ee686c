"""Keys and limits, other people's pages, silence, logs, traces, several models, and what is kept."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ingle.cli.keys import read_keys
from ingle.cli.logs import JsonLines
from ingle.config import ApiKey, ServerConfig
from ingle.errors import CheckpointError, ConfigError, EngineStopped, QueueFull, RateLimited
from ingle.server import app as app_module
from ingle.server.clients import Clients
from ingle.server.store import ResponseStore
from ingle.server.tracing import OpenTelemetryTracer
from ingle.service import model_pool
from ingle.service.model_pool import ModelPool, OpenModel, Place
from support.scripted import ScriptedEngine, scripted_model
from support.served import Running

SECRET = "the secret of this prompt"
ASK = {"model": "scripted", "messages": [{"role": "user", "content": SECRET}]}


def serve(
    reply: Callable[[str], str] = lambda _: "Hello.", *, delay_s: float = 0.0, **config: Any
) -> Running:
    return Running(ServerConfig(port=0, **config), model=scripted_model(reply, delay_s=delay_s))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Keys.


def test_a_key_has_its_limits() -> None:
    now = 0.0
    key = ApiKey(digest=ApiKey.of("a").digest, name="bot", max_concurrent=2, tokens_per_minute=60)
    clients = Clients([key, ApiKey.of("b")], clock=lambda: now)
    found = clients.find("a")
    assert found is key and clients.find("c") is None and clients.find("") is None
    for _ in range(2):
        clients.enter(key)
    with pytest.raises(RateLimited, match="'bot' has 2 requests under way, its limit is 2"):
        clients.enter(key)
    clients.leave(key)
    clients.charge(key.digest, 75)
    with pytest.raises(RateLimited, match="used its 60 tokens a minute") as caught:
        clients.enter(key)
    assert caught.value.retry_after_s == 16
    now = 16.0
    clients.enter(key)
    now = 1000.0
    clients.charge(key.digest, 59)
    clients.leave(key)
    clients.enter(key)  # a full bucket holds one minute
    clients.charge(b"nobody", 5)


def test_limits_over_http() -> None:
    keys = (
        ApiKey(digest=ApiKey.of("slow").digest, name="slow", tokens_per_minute=1000),
        ApiKey(digest=ApiKey.of("one").digest, name="one", max_concurrent=1),
    )
    running = serve(lambda prompt: "word " * (300 if "long" in prompt else 40), delay_s=0.003, api_keys=keys)
    long = {"model": "scripted", "messages": [{"role": "user", "content": "long"}], "stream": True}
    address = running.url + "/v1/chat/completions"
    with httpx2.stream("POST", address, json=long, headers=bearer("one")) as answer:
        lines = answer.iter_lines()
        next(lines)
        refused = httpx2.post(address, json=ASK, headers=bearer("one"))
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
    for _ in range(100):
        if httpx2.get(running.url + "/v1/models", headers=bearer("one")).status_code == 200:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("the client's leaving frees its place")
    used: list[int] = []
    while (answer := httpx2.post(address, json=ASK, headers=bearer("slow"), timeout=60)).status_code == 200:
        used.append(answer.json()["usage"]["total_tokens"])
    assert sum(used) >= 1000 > sum(used[:-1]) and answer.status_code == 429
    refused = httpx2.post(running.url + "/v1/messages", json={}, headers={"x-api-key": "slow"})
    assert refused.status_code == 429 and refused.json()["error"]["type"] == "rate_limit_error"
    running.stop()


def test_keys_of_a_file(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "ingle.cli", "key", "ci"], capture_output=True, text=True, check=True
    ).stdout
    secret, line = (text.split(":  ", 1)[1].strip() for text in made.splitlines() if ":  " in text)
    assert len(secret) > 40 and secret not in line
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{line} concurrent=2 tokens_per_minute=600 # for the robot\n\nplain-key\n")
    keys = read_keys(file)
    assert Clients(keys).find(secret) == keys[0]
    assert (keys[0].name, keys[0].max_concurrent, keys[0].tokens_per_minute) == ("ci", 2, 600)
    assert Clients(keys).find("plain-key") == keys[1]
    assert secret not in repr(keys) and "plain-key" not in repr(keys)
    for bad, message in (
        ("name sha256:12", "line 1: expected 'NAME sha256:DIGEST'"),
        (f"{line} speed=5", "'speed=5' is no limit"),
        (f"{line} concurrent=0", "max_concurrent must be at least 1"),
        ("# nothing", "holds no API key"),
    ):
        file.write_text(bad)
        with pytest.raises(ConfigError, match=message):
            read_keys(file)


# Pages of others.


@pytest.mark.parametrize(
    ("headers", "config", "status"),
    [
        ({}, {}, 200),
        ({"origin": "http://evil.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"origin": "http://{host}"}, {}, 200),
        ({"origin": "https://app.example"}, {"cors_origins": ("https://app.example",)}, 200),
        ({"origin": "https://other.example"}, {"cors_origins": ("https://app.example",)}, 403),
        ({"origin": "https://any.example"}, {"cors_origins": ("*",)}, 200),
        ({"host": "evil.example"}, {}, 403),
        ({"host": "evil.example:80@localhost"}, {}, 403),
        ({"host": "localhost.evil.example"}, {}, 403),
        ({"host": "localhost:1"}, {}, 200),
        ({"host": "me.localhost"}, {}, 200),
        ({"host": "[::1]:8400"}, {}, 200),
        ({"host": "box.lan"}, {"allowed_hosts": ("box.lan",)}, 200),
    ],
)
def test_only_pages_that_may(headers: dict[str, str], config: dict[str, Any], status: int) -> None:
    running = serve(**config)
    headers = {k: v.format(host=running.url.removeprefix("http://")) for k, v in headers.items()}
    answer = httpx2.post(running.url + "/v1/chat/completions", json=ASK, headers=headers)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["error"]["code"] == "forbidden" and not running.model.engine.prompts  # type: ignore[attr-defined] # pyright: ignore
    allowed = answer.headers.get("access-control-allow-origin")
    assert (allowed is not None) == ("cors_origins" in config and status == 200)
    running.stop()


# Silence.


def test_a_silent_stream_is_kept_alive() -> None:
    running = serve(delay_s=0.5, keep_alive_s=0.1)
    lines: list[str] = []
    with httpx2.stream("POST", running.url + "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        lines += answer.iter_lines()
    assert lines.count(": keep-alive") >= 3 and lines[-2:] == ["data: [DONE]", ""]
    running.stop()
    running = serve(keep_alive_s=0.1)
    text = httpx2.post(running.url + "/v1/chat/completions", json={**ASK, "stream": True}).text
    assert ": keep-alive" not in text
    running.stop()


# Logs and traces.


def logged(running: Running) -> list[dict[str, Any]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("ingle")
    level, logger.level = logger.level, logging.DEBUG
    logging.getLogger("ingle.requests").setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        headers = {"x-request-id": "abc"}
        assert httpx2.post(running.url + "/v1/chat/completions", json=ASK, headers=headers).status_code == 200
        assert (
            httpx2.post(
                running.url + "/v1/chat/completions", json={**ASK, "messages": [{"role": SECRET}]}
            ).status_code
            == 400
        )
        assert httpx2.get(running.url + f"/{SECRET}").status_code == 404
        time.sleep(0.05)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_logs_say_everything_but_what_was_asked() -> None:
    running = serve()
    lines = logged(running)
    asked = next(line for line in lines if line.get("request_id") == "abc")
    assert asked["status"] == 200 and asked["model"] == "scripted" and asked["path"] == "/v1/chat/completions"
    assert asked["prompt_tokens"] > 5 and asked["completion_tokens"] > 1 and asked["finished"] == ["stop"]
    assert asked["seconds"] > 0 and asked["level"] == "info"
    told = json.dumps([line for line in lines if line.get("path") != f"/{SECRET}"])
    assert SECRET not in told and "Hello." not in told
    running.stop()
    running = serve(log_prompts=True)
    assert SECRET in json.dumps(logged(running))
    running.stop()


def test_spans_of_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = OpenTelemetryTracer()
    tracer._tracer = provider.get_tracer("ingle")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(app_module, "NoTracer", lambda: tracer)
    running = serve()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {**ASK, "max_tokens": 50, "temperature": 0.5, "stream": True}
    httpx2.post(running.url + "/v1/chat/completions", json=body, headers={"traceparent": parent})
    running.stop()
    (span,) = spans.get_finished_spans()
    facts = dict(span.attributes or {})
    assert span.name == "chat scripted" and span.kind == trace.SpanKind.SERVER
    assert span.context is not None and f"{span.context.trace_id:x}" in parent
    assert facts["gen_ai.request.temperature"] == 0.5 and facts["gen_ai.request.max_tokens"] == 50
    assert facts["gen_ai.usage.output_tokens"] == 3 or facts["gen_ai.usage.output_tokens"] > 1  # type: ignore[operator] # pyright: ignore
    assert facts["gen_ai.response.finish_reasons"] == ("stop",)
    assert SECRET not in str(facts)


# Several models.


class Shelf:
    """Models that count how often they are loaded and closed."""

    def __init__(self, *names: str, broken: str = "", load_s: float = 0.0) -> None:
        self._load_s = load_s
        self.events: list[str] = []
        self.places = [Place(name, lambda name=name: self._load(name, broken)) for name in names]

    def _load(self, name: str, broken: str) -> OpenModel:
        if name == broken:
            raise CheckpointError("the file is cut short")
        time.sleep(self._load_s)
        self.events.append(f"+{name}")
        model = scripted_model(lambda _: name, name=name)

        def close() -> None:
            self.events.append(f"-{name}")
            assert isinstance(model.engine, ScriptedEngine)
            model.engine.close()

        return OpenModel(model, close)


def test_models_take_turns() -> None:
    async def main() -> None:
        shelf = Shelf("a", "b", "c")
        pool = ModelPool(shelf.places, limit=2)
        both = await asyncio.gather(*(pool.acquire("a") for _ in range(3)))
        assert both[0] is both[1] and shelf.events == ["+a"], "loaded once, however many ask"
        await pool.acquire("b")
        pool.release("b")
        await pool.acquire("c")
        assert shelf.events == ["+a", "+b", "-b", "+c"], "the idle one goes, not the one in use"
        waiting = asyncio.create_task(pool.acquire("b"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        pool.release("c")
        assert (await waiting).name == "b" and shelf.events[-2:] == ["-c", "+b"]
        for name in ("a", "a", "a", "b"):
            pool.release(name)
        assert await pool.unload("a") and not await pool.unload("a")
        assert [place.opened is not None for place in pool.places] == [False, True, False]
        await pool.unload("b")
        await pool.close()

    asyncio.run(main())


def test_who_waits_for_a_loaded_model_does_not_block_who_waits_for_its_place() -> None:
    async def main() -> None:
        pool = ModelPool(Shelf("a", "b", load_s=0.1).places, limit=1)
        waiting = []
        for name in "bab":  # while the first one is loaded, the others queue up behind it
            waiting.append(asyncio.create_task(pool.acquire(name)))
            await asyncio.sleep(0.02)
        for _ in range(5):
            done, _ = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert done
            for task in done:
                waiting.remove(task)
                pool.release((await task).name)
            if not waiting:
                break
        assert not waiting
        for name in "ab":
            await pool.unload(name)
        await pool.close()

    asyncio.run(main())


def test_what_a_pool_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_pool, "WAIT_S", 0.05)

    async def main() -> None:
        shelf = Shelf("a", "b", broken="b")
        pool = ModelPool(shelf.places, limit=1)
        await pool.acquire("a")
        with pytest.raises(QueueFull, match="all 1 loaded models are in use"):
            await pool.acquire("b")
        with pytest.raises(QueueFull, match="model 'a' is in use"):
            await pool.unload("a")
        pool.release("a")
        with pytest.raises(EngineStopped, match="'b' could not be loaded: the file is cut short"):
            await pool.acquire("b")
        assert (await pool.acquire("a")).name == "a", "a failure leaves the others usable"
        pool.release("a")
        await pool.unload("a")
        await pool.close()

    asyncio.run(main())


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    shelf = Shelf("a", "b")
    running = Running(
        ServerConfig(port=0), model=scripted_model(lambda _: "x"), pool=ModelPool(shelf.places, idle_s=0.2)
    )

    def ask(name: str) -> str:
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
        answer = httpx2.post(running.url + "/v1/chat/completions", json=body)
        return answer.json()["choices"][0]["message"]["content"]

    def states() -> dict[str, str]:
        return {m["id"]: m["status"] for m in httpx2.get(running.url + "/v1/models").json()["data"]}

    assert states() == {"a": "unloaded", "b": "unloaded"}
    assert (ask("a"), ask("b")) == ("a", "b") and states() == {"a": "loaded", "b": "loaded"}
    for _ in range(100):
        if states() == {"a": "unloaded", "b": "unloaded"}:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(states())
    assert ask("a") == "a"
    assert httpx2.post(running.url + "/v1/models/load", json={"model": "b"}).json()["status"] == "loaded"
    assert httpx2.post(running.url + "/v1/models/unload", json={"model": "a"}).json()["status"] == "unloaded"
    assert httpx2.post(running.url + "/v1/models/load", json={"model": "c"}).status_code == 404
    assert 'ingle_engine_alive{model="b"}' in httpx2.get(running.url + "/metrics").text
    assert httpx2.get(running.url + "/health").json() == {"status": "ok"}
    running.stop()
    for place in shelf.places:
        if place.opened is not None:
            place.opened.close()


# What is kept.


def test_responses_are_kept_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "responses.db"
    store = ResponseStore(file, 3000)
    for number in range(10):
        store.put(b"me", {"id": f"r{number}", "text": "x" * 400}, [{"n": number}])
    assert store.response(b"me", "r0") is None and store.response(b"me", "r9")["text"] == "x" * 400  # pyright: ignore
    assert store.items(b"me", "r9") == [{"n": 9}] and store.items(b"you", "r9") is None
    store.put(b"me", {"id": "large", "text": "x" * 4000}, [])
    assert store.response(b"me", "large") is None and store.response(b"me", "r9") is not None
    assert not store.delete(b"you", "r9") and store.delete(b"me", "r9") and not store.delete(b"me", "r9")
    store.close()
    again = ResponseStore(file, 3000)
    assert again.response(b"me", "r8") is not None
    again.close()
    file.write_bytes(b"something else" * 100)
    with pytest.raises(ConfigError, match="cannot keep responses"):
        ResponseStore(file, 3000)


def test_clients_do_not_see_each_others_responses() -> None:
    running = serve(api_keys=(ApiKey.of("one"), ApiKey.of("two")))
    made = httpx2.post(
        running.url + "/v1/responses", json={"model": "scripted", "input": SECRET}, headers=bearer("one")
    ).json()
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        there = running.url + f"/v1/responses/{made['id']}{path}"
        assert httpx2.request(method, there, headers=bearer("two")).status_code == 404
    more = {"model": "scripted", "input": "x", "previous_response_id": made["id"]}
    assert httpx2.post(running.url + "/v1/responses", json=more, headers=bearer("two")).status_code == 404
    assert httpx2.post(running.url + "/v1/responses", json=more, headers=bearer("one")).status_code == 200
    other = httpx2.post(
        running.url + "/v1/responses", json={**more, "store": False}, headers=bearer("one")
    ).json()
    assert httpx2.get(running.url + f"/v1/responses/{other['id']}", headers=bearer("one")).status_code == 404
    running.stop()


def test_serving_two_models_from_the_command_line() -> None:
    command = [
        sys.executable,
        "-m",
        "ingle.cli",
        "serve",
        "one=tiny-gemma4",
        "two=tiny-gemma4",
        "--port",
        "0",
        "--max-loaded",
        "1",
        "--memory",
        "1GiB",
    ]
    done: list[int] = []
    with subprocess.Popen([*command, "--drafter", "none"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "serves one, two at" in line and "not loaded" in line
        url = line.split(" at ")[1].split("/v1")[0]

        def ask(name: str) -> None:
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
            done.append(httpx2.post(url + "/v1/chat/completions", json=body, timeout=60).status_code)

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.terminate()
        assert server.wait(20) == 0 and done == [200] * 4
    for wrong, message in (
        (["a=tiny-gemma4", "a=tiny-gemma4"], "two models are called 'a'"),
        (["tiny-gemma4", "x=tiny-gemma4", "--name", "y"], "--name says something of one model"),
        (["tiny-gemma4", "--max-loaded", "0"], "max-loaded must be 1 to 64"),
    ):
        failed = subprocess.run([*command[:4], *wrong], capture_output=True, text=True)
        assert failed.returncode == 2 and message in failed.stderr
