"""What a client and an operator see of caching, memory, priorities and health."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import mlx.core as mx
import openai
import pytest
from openai import OpenAI

from ingle.cache.state import held_bytes
from ingle.config import ApiKey, ServerConfig
from support.served import Running, WideToy

LONG: list[Any] = [{"role": "user", "content": "hello " * 60}]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(ServerConfig(port=0, api_keys=(ApiKey.of("one"), ApiKey.of("two"))), max_rows=4)
    yield running
    running.stop()


def ask(running: Running, key: str, messages: list[Any], **more: Any) -> tuple[str, int]:
    """(text, cached tokens) for one client."""
    client = OpenAI(base_url=running.url + "/v1", api_key=key, max_retries=0)
    more.setdefault("max_tokens", 8)
    answer = client.chat.completions.create(model="toy", messages=messages, temperature=0.0, **more)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None and cached <= answer.usage.prompt_tokens
    return answer.choices[0].message.content or "", cached


def test_usage_tells_what_was_cached_and_clients_share_nothing(running: Running) -> None:
    cold, none = ask(running, "one", LONG)
    warm, cached = ask(running, "one", LONG)
    other, foreign = ask(running, "two", LONG)
    assert (none, foreign) == (0, 0)
    assert cached > 64
    assert cold == warm == other


def test_the_stream_tells_it_too(running: Running) -> None:
    client = OpenAI(base_url=running.url + "/v1", api_key="one", max_retries=0)
    ask(running, "one", LONG)
    for path, fields in (("chat", {"messages": LONG}), ("text", {"prompt": "hello " * 60})):
        create: Any = client.chat.completions.create if path == "chat" else client.completions.create
        create(model="toy", max_tokens=4, **fields)
        *_, last = create(
            model="toy", max_tokens=4, stream=True, stream_options={"include_usage": True}, **fields
        )
        assert last.usage.prompt_tokens_details.cached_tokens > 64, path


def test_priority_is_a_field(running: Running) -> None:
    text, _ = ask(running, "one", LONG, extra_body={"priority": 3})
    assert text == ask(running, "one", LONG)[0]
    with pytest.raises(openai.BadRequestError, match="priority"):
        ask(running, "one", LONG, extra_body={"priority": "high"})
    with pytest.raises(openai.BadRequestError, match="priority"):
        ask(running, "one", LONG, extra_body={"priority": 2**40})


def test_a_request_may_bring_its_own_deadline(running: Running) -> None:
    more: dict[str, Any] = {"max_tokens": 700, "extra_body": {"ignore_eos": True, "timeout_s": 0.05}}
    with pytest.raises(openai.APIStatusError, match=r"longer than its timeout_s, 0.05 s") as late:
        ask(running, "one", LONG, **more)
    assert late.value.status_code == 504
    running.settle()
    with pytest.raises(openai.BadRequestError, match="timeout_s"):
        ask(running, "one", LONG, extra_body={"timeout_s": 0})
    assert ask(running, "one", LONG, extra_body={"timeout_s": 60})[0] == ask(running, "one", LONG)[0]


def test_the_engine_describes_itself(running: Running) -> None:
    ask(running, "one", LONG)
    state = httpx2.get(running.url + "/v1/engine", headers={"authorization": "Bearer one"}).json()["toy"]
    assert state["alive"] and state["running"] == 0
    assert state["cached_tokens"] > 0 and state["prompt_cache_bytes"] > 0
    assert set(state["steps"]) <= {"prefill", "decode", "mixed"}
    text = httpx2.get(running.url + "/metrics", headers={"authorization": "Bearer one"}).text
    for name in (
        "ingle_num_requests_running",
        "ingle_num_requests_waiting",
        "ingle_prefix_cache_hits_total",
        "ingle_kv_cache_usage_perc",
        "ingle_inter_token_latency_seconds_bucket",
        'ingle_engine_steps_total{model="toy",phase="decode"}',
        'ingle_request_success_total{finished_reason="length",model="toy"}',
    ):
        assert name in text, name


@pytest.mark.parametrize("stream", [False, True])
def test_what_never_fits_the_memory_is_a_400_before_any_header(stream: bool) -> None:
    gc.collect()
    before = held_bytes()
    graph = WideToy()
    memory = held_bytes() - before + graph.step_bytes(256 + 2, 2) + 150_000
    small = Running(ServerConfig(port=0), memory_bytes=memory, max_rows=2)
    try:
        client = small.client()
        assert small.engine.info.fitting_tokens is not None
        with pytest.raises(openai.BadRequestError, match=r"MiB of KV, .* available .*--memory") as refused:
            client.completions.create(model="toy", prompt="x", max_tokens=890, stream=stream)
        assert refused.value.code == "insufficient_memory"
        assert refused.value.param == "max_tokens"
        answer = client.completions.create(model="toy", prompt="x", max_tokens=3)
        assert answer.choices[0].finish_reason in ("length", "stop")
        open_end = client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "x"}], extra_body={"ignore_eos": True}
        )
        assert open_end.usage is not None
        assert open_end.usage.total_tokens == small.engine.info.fitting_tokens, (
            "no limit given: all that fits"
        )
    finally:
        small.stop()


def test_a_stuck_step_turns_health_red_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, go_on = threading.Event(), threading.Event()
    embed = WideToy.embed

    def hanging(self: WideToy, ids: mx.array) -> mx.array:
        if stuck.is_set():
            go_on.wait(20)
        return embed(self, ids)

    monkeypatch.setattr(WideToy, "embed", hanging)
    running = Running(ServerConfig(port=0, stuck_after_s=0.2))
    try:
        assert httpx2.get(running.url + "/health").status_code == 200
        stuck.set()
        threading.Thread(
            target=lambda: running.post(
                "/v1/completions", '{"model": "toy", "prompt": "x", "max_tokens": 2}'
            ),
            daemon=True,
        ).start()
        time.sleep(0.6)
        answer = httpx2.get(running.url + "/health")
        assert answer.status_code == 503
        assert "the engine of toy is stuck" in answer.json()["problems"][0]
        stuck.clear()
        go_on.set()
        for _ in range(100):
            if httpx2.get(running.url + "/health").status_code == 200:
                break
            time.sleep(0.05)
        assert httpx2.get(running.url + "/health").json() == {"status": "ok"}
    finally:
        go_on.set()
        running.stop()
