"""Bodies that are nearly right: a good one of each dialect with a few things wrong."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "look", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

CHAT = {
    "model": "scripted",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["zz"], "n": 1, "max_tokens": 4,
    "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1}, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "min_tokens": 1, "stop_token_ids": [3], "stream": True,
    "stream_options": {"include_usage": True}, "reasoning_effort": "low", "thinking_budget": 3,
    "chat_template_kwargs": {"x": 1}, "parallel_tool_calls": False, "priority": 1, "timeout_s": 5, "ignore_eos": False,
}  # fmt: skip
COMPLETION = {
    "model": "scripted", "prompt": ["a", "b"], "max_tokens": 3, "echo": True, "n": 1, "best_of": 1, "stop": "z",
    "logprobs": None, "response_format": {"type": "regex", "regex": "a|b"}, "stream": False,
}  # fmt: skip
RESPONSES = {
    "model": "scripted",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}], "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "o"}]},
    ],
    "instructions": "i", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "reasoning": {"effort": "low"},
    "max_output_tokens": 4, "store": False, "stream": True, "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"}, "temperature": 0.3, "top_p": 0.8, "top_logprobs": 1, "previous_response_id": None,
}  # fmt: skip
MESSAGES = {
    "model": "scripted", "max_tokens": 4, "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "x"}]}]},
    ],
    "tools": [{"name": "look", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}, "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 5}, "stop_sequences": ["z"], "temperature": 0.5, "top_k": 4, "top_p": 0.5,
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
}  # fmt: skip
EMBEDDINGS = {"model": "scripted", "input": ["a", [5, 6]], "dimensions": 4, "encoding_format": "base64"}
OLLAMA = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_name": "look", "content": "x"}],
    "tools": [{"type": "function", "function": FUNCTION}], "format": SCHEMA, "think": True, "stream": False,
    "options": {"temperature": 0.1, "num_predict": 3, "stop": ["z"], "seed": 2, "num_ctx": 100}, "keep_alive": "5m",
}  # fmt: skip

GOOD: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", COMPLETION),
    "responses": ("/v1/responses", RESPONSES),
    "messages": ("/v1/messages", MESSAGES),
    "count_tokens": (
        "/v1/messages/count_tokens",
        {k: v for k, v in MESSAGES.items() if k not in ("max_tokens", "stream")},
    ),
    "embeddings": ("/v1/embeddings", EMBEDDINGS),
    "ollama": ("/api/chat", OLLAMA),
    "tokenize": ("/tokenize", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}),
    "detokenize": ("/detokenize", {"model": "scripted", "tokens": [5, 6]}),
}

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 1e308, -0.0, 0.5, "", "x", "\ud800", "\x00", "💥" * 50,
    "a" * 5000, "<|turn>", "<|tool_call>call:look{}", [], {}, [[]], [None], [1, "x"], {"type": "text"}, {"type": "function"}, {"role": "user"},
    {"type": "image_url", "image_url": {"url": PIXEL}}, {"type": "image_url", "image_url": "http://169.254.169.254/x"}, {"": ""},
    {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"$ref": "#/$defs/none"}, {"type": ["string", 5]}, {"enum": []},
    {"type": "regex", "regex": "(" * 50}, {"type": "lark", "lark": "start: start"}, {"not": {}}, {"anyOf": [True, False]}, "auto", "none", "required", "json",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            out += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            out += places(inner, (*path, index))
    return out


def body(random_: random.Random, good: dict[str, Any]) -> bytes:
    """One body; the same generator gives the same bodies."""
    value: Any = copy.deepcopy(good)
    for name in list(value):  # most fields are left out, so that the others are reached
        if (
            name not in ("model", "messages", "input", "prompt", "max_tokens", "tokens")
            and random_.random() < 0.7
        ):
            del value[name]
    for _ in range(random_.choice((0, 1, 1, 1, 2, 3))):
        path = random_.choice(places(value))
        if not path:
            if random_.random() < 0.1:
                return random_.choice(
                    (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 3000, b"5", b'{"model": "scripted"')
                )
            continue
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        what = random_.random()
        if what < 0.2:
            del holder[path[-1]]
        elif what < 0.3 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * 3)
        elif what < 0.4 and isinstance(holder, dict):
            holder[random_.choice(["type", "role", "content", "name", "id", "extra", "x" * 300])] = (
                copy.deepcopy(random_.choice(ODD))
            )
        else:
            holder[path[-1]] = copy.deepcopy(random_.choice(ODD))
    return json.dumps(value).encode()
