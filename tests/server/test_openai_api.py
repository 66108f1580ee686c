"""The API through the official client, over a real socket, a real engine and a tiny real model."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from ingle.config import ApiKey, ServerConfig
from support.served import Running

HI: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(ServerConfig(port=0, max_body_bytes=1024 * 1024), max_rows=8)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[OpenAI]:
    with running.client() as client:
        yield client


def good(client: OpenAI) -> None:
    """The next good request works."""
    answer = client.chat.completions.create(
        model="toy", messages=HI, max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_a_chat_answer_has_every_field(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=HI, max_tokens=12, seed=1, temperature=0.5)
    assert answer.object == "chat.completion"
    assert answer.model == "toy"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 5}, {"seed": -3, "top_p": 0.9, "n": 3}])
def test_a_stream_joins_to_the_whole_answer(client: OpenAI, sampling: dict[str, Any]) -> None:
    whole = client.chat.completions.create(model="toy", messages=HI, max_tokens=40, **sampling)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    roles: set[int] = set()
    for chunk in client.chat.completions.create(
        model="toy", messages=HI, max_tokens=40, stream=True, **sampling
    ):
        assert chunk.usage is None
        for choice in chunk.choices:
            if choice.delta.role:
                roles.add(choice.index)
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert [c.message.content for c in whole.choices] == [texts[i] for i in sorted(texts)]
    assert [c.finish_reason for c in whole.choices] == [reasons[i] for i in sorted(reasons)]
    assert roles == set(texts)


def test_usage_comes_last_and_only_when_asked(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        model="toy",
        messages=HI,
        max_tokens=5,
        stream=True,
        stream_options=options,
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5


def test_the_async_client_and_many_at_once(running: Running) -> None:
    async def one(client: AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="toy", messages=HI, max_tokens=30, seed=seed, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def main() -> tuple[list[str], list[str]]:
        async with AsyncOpenAI(base_url=running.url + "/v1", api_key="any") as client:
            together = await asyncio.gather(*(one(client, seed) for seed in range(8)))
            return together, [await one(client, seed) for seed in range(8)]

    together, alone = asyncio.run(main())
    assert together == alone, "company changes no answer"
    assert len(set(together)) > 1


def test_raw_bytes_of_a_stream(running: Running) -> None:
    address = urlsplit(running.url)
    body = json.dumps(
        {"model": "toy", "messages": HI, "max_tokens": 4, "stream": True, "ignore_eos": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    headers, _, rest = data.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/event-stream" in headers.lower()
    assert b"x-request-id: " in headers
    events = [line for line in rest.split(b"\r\n") if line.startswith(b"data: ")]
    assert all(event.endswith(b"\n\n") for event in events)
    assert events[-1] == b"data: [DONE]\n\n"
    assert json.loads(events[0][6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_logprobs_line_up_with_the_content(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=HI, max_tokens=60, seed=3, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    data = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
    assert data.decode("utf-8", "replace") == choice.message.content
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    plain = client.chat.completions.create(model="toy", messages=HI, max_tokens=5, seed=3, logprobs=True)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.content
    assert plain.choices[0].logprobs.content[0].top_logprobs == []


def test_stop_strings_cut_and_end(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "toy", "messages": HI, "max_tokens": 80, "seed": 11}
    text = client.chat.completions.create(**ask).choices[0].message.content
    assert text is not None and len(text) > 20
    stop = text[10:13]
    cut = client.chat.completions.create(**ask, stop=[stop], logprobs=True).choices[0]
    assert cut.message.content == text[: text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.logprobs is not None and cut.logprobs.content is not None
    data = b"".join(bytes(entry.bytes or []) for entry in cut.logprobs.content)
    assert data.decode("utf-8", "replace").startswith(cut.message.content or "")
    streamed = client.chat.completions.create(**ask, stop=[stop], stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == cut.message.content


def test_completions(client: OpenAI) -> None:
    one = client.completions.create(model="toy", prompt="hell", max_tokens=6, temperature=0)
    ids = client.completions.create(model="toy", prompt=[261], max_tokens=6, temperature=0)
    assert one.choices[0].text == ids.choices[0].text
    many = client.completions.create(
        model="toy", prompt=["hell", "x"], n=2, max_tokens=4, temperature=0, echo=True
    )
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert [c.text[:1] for c in many.choices] == ["h", "h", "x", "x"]
    legacy = client.completions.create(model="toy", prompt="x", max_tokens=4, temperature=0, logprobs=2)
    lined = legacy.choices[0].logprobs
    assert lined is not None and lined.tokens is not None and lined.top_logprobs is not None
    assert len(lined.tokens) == len(lined.token_logprobs or []) == len(lined.top_logprobs)
    streamed = client.completions.create(model="toy", prompt="hell", max_tokens=6, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == one.choices[0].text


def test_models_health_metrics_and_root(client: OpenAI, running: Running) -> None:
    assert [m.id for m in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")
    assert httpx2.get(running.url + "/health").json() == {"status": "ok"}
    assert httpx2.head(running.url + "/").status_code == 200
    metrics = httpx2.get(running.url + "/metrics").text
    assert 'ingle_generation_tokens_total{model="toy"}' in metrics
    assert 'ingle_http_requests_total{route="/v1/chat/completions",status="200"}' in metrics


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least one"),
    ({"messages": [], "stream": True}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": None}, "messages", "required"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "'wizard'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "nothing"),
    ({"max_tokens": 10**9}, "max_tokens", "1000000000"),
    ({"max_tokens": 0}, "max_tokens", "1"),
    ({"max_tokens": 10**30}, "max_tokens", ""),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "one of them"),
    ({"max_tokens": "5"}, "max_tokens", "int"),
    ({"temperature": True}, "temperature", "bool"),
    ({"temperature": 3}, "temperature", "between 0.0 and 2.0"),
    ({"top_p": 0}, "top_p", "(0, 1]"),
    ({"n": 0}, "n", ""),
    ({"n": 99}, "n", "allows up to 8"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "-1"),
    ({"logit_bias": {"cat": 1}}, "logit_bias", "cat"),
    ({"logit_bias": {str(i): 1 for i in range(262)} | {"0": 101}}, "logit_bias", "101"),
    ({"stop_token_ids": [10**9], "min_tokens": 2}, "stop_token_ids", "1000000000"),
    ({"stop": ""}, "stop", "empty"),
    ({"stop": ["x"] * 17}, "stop", "16"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "'yaml', expected text, json_object"),
    ({"response_format": {"type": "regex", "regex": "(?=a)b"}}, "response_format.regex", "look-around"),
    ({"response_format": {"type": "regex", "regex": "a"}, "guided_regex": "b"}, "guided_regex", "exclude"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "must be an object, got nothing"),
    ({"tools": TOOLS}, "tools", "'toy' calls no tools"),
    ({"tools": TOOLS * 2}, "tools", "'look' twice"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "'toy' does not reason"),
    ({"reasoning_effort": "maximal"}, "reasoning_effort", "one of none, minimal"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "set by the request itself"),
    ({"store": True}, "store", "not supported"),
    ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages", "900"),
]


@pytest.mark.parametrize(("change", "param", "message"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_is_a_400_that_names_it(
    running: Running, client: OpenAI, change: dict[str, Any], param: str | None, message: str
) -> None:
    body = {"model": "toy", "messages": HI, "max_tokens": 3, **change}
    answer = running.post("/v1/chat/completions", json.dumps(body))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]
    good(client)


def test_the_prompt_length_error_names_both_numbers(running: Running) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "x" * 2000}]}
    error = running.post("/v1/chat/completions", json.dumps(body)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "900" in error["message"] and "20" in error["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("", 400),
        ("[]", 400),
        ('"x"', 400),
        (b"\xff\xfe\x00", 400),
        ("[" * 100_000, 400),
        ('{"model": "toy"}', 400),
        ('{"messages": []}', 400),
        ('{"model": 5, "messages": []}', 400),
        ('{"model": "other", "messages": [], "prompt": "x"}', 404),
        (b"x" * (2 * 1024 * 1024), 413),
    ],
    ids=range(11),
)
def test_broken_bodies(running: Running, client: OpenAI, body: bytes | str, status: int) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = running.post(path, body)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    good(client)


def test_a_50_mb_body_is_refused_and_the_server_lives(running: Running, client: OpenAI) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x" * 1024 * 1024

    for _ in range(3):  # the answer arrives every time, not only when the client has finished first
        answer = httpx2.post(running.url + "/v1/chat/completions", content=chunks(), timeout=60)
        assert answer.status_code == 413
        assert "1048576 bytes" in answer.json()["error"]["message"]
    good(client)


def test_unknown_fields_are_counted_not_refused(running: Running) -> None:
    body = {"model": "toy", "messages": HI, "max_tokens": 2, "frobnicate": 1}
    before = running.app.state.ingle.metrics.ignored_fields._value.get()
    assert running.post("/v1/chat/completions", json.dumps(body)).status_code == 200
    assert running.app.state.ingle.metrics.ignored_fields._value.get() == before + 1


def test_wrong_paths_and_methods(running: Running) -> None:
    assert httpx2.get(running.url + "/nope").json()["error"]["code"] == "not_found"
    assert httpx2.get(running.url + "/v1/chat/completions").status_code == 405


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(running: Running, client: OpenAI, stream: bool) -> None:
    address = urlsplit(running.url)
    body = json.dumps({"model": "toy", "messages": HI, "stream": stream, "ignore_eos": True}).encode()
    connection = socket.create_connection((address.hostname, address.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    cancelled = running.engine.stats().finished.get("cancelled", 0)
    connection.sendall(head.encode() + body)
    while running.engine.stats().running == 0:
        time.sleep(0.005)
    connection.close()
    running.settle()
    assert running.engine.stats().finished.get("cancelled", 0) == cancelled + 1
    good(client)


def test_a_full_queue_is_a_429() -> None:
    running = Running(ServerConfig(port=0), max_rows=1, max_waiting=0)
    with running.client() as client:
        stream = client.chat.completions.create(
            model="toy", messages=HI, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="toy", messages=HI, stream=True)
        assert caught.value.response.headers["retry-after"] == "1"
        stream.close()
        running.settle()
        good(client)
    running.stop()


def test_api_keys() -> None:
    running = Running(ServerConfig(port=0, api_keys=(ApiKey.of("right"), ApiKey.of("other"))))
    assert httpx2.get(running.url + "/health").status_code == 200
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "right"},
        {"authorization": "Basic right"},
    ):
        answer = httpx2.get(running.url + "/v1/models", headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    for key in ("right", "other"):
        with OpenAI(base_url=running.url + "/v1", api_key=key) as client:
            good(client)
    running.stop()


def test_shutdown_ends_a_long_stream_with_a_reason() -> None:
    running = Running(ServerConfig(port=0, shutdown_timeout_s=0.3))
    body = {"model": "toy", "messages": HI, "stream": True, "ignore_eos": True, "logit_bias": {"65": 100}}
    lines: list[str] = []
    with httpx2.stream("POST", running.url + "/v1/chat/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) == 4:
                running.server.should_exit = True
    assert json.loads(lines[-2].removeprefix("data: "))["error"][
        "message"
    ] == "the server is shutting down" or ("data: [DONE]" in lines)
    running.stop()


def test_a_request_over_the_time_limit_ends() -> None:
    running = Running(ServerConfig(port=0, request_timeout_s=0.05))
    body = json.dumps({"model": "toy", "messages": HI, "ignore_eos": True})
    answer = running.post("/v1/chat/completions", body)
    assert answer.status_code == 504
    assert "0.05 s" in answer.json()["error"]["message"]
    running.settle()
    running.stop()


def test_a_dead_engine_turns_health_red(running: Running) -> None:
    other = Running(ServerConfig(port=0))
    other.engine.close("out of order")
    assert httpx2.get(other.url + "/health").status_code == 503
    answer = other.post("/v1/chat/completions", json.dumps({"model": "toy", "messages": HI}))
    assert answer.status_code == 503
    other.stop()


def test_a_model_without_a_template_says_so() -> None:
    running = Running(ServerConfig(port=0), template=None)
    answer = running.post("/v1/chat/completions", json.dumps({"model": "toy", "messages": HI}))
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]
    running.stop()


def test_a_template_that_raises_or_hangs_costs_one_request() -> None:
    moody = (
        "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
        "{% endfor %}{% elif messages[0].content == 'no' %}{{ raise_exception('not in this mood') }}{% endif %}ok"
    )
    running = Running(ServerConfig(port=0), template=moody)
    for content, message in (("no", "not in this mood"), ("loop", "longer than 5 s")):
        body = json.dumps({"model": "toy", "messages": [{"role": "user", "content": content}]})
        answer = running.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
        with running.client() as client:
            good(client)
    running.stop()
