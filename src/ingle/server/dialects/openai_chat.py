"""OpenAI Chat Completions: parse the request, render chunks and the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server import sse
from ingle.server.answers import Collected
from ingle.server.dialects import wishes
from ingle.server.dialects.common import Count, SamplingFields, generation_options, head, usage, visible
from ingle.server.errors import openai_error, problem_of
from ingle.server.fields import Harmless, anything, decode, only
from ingle.service.chat import ChatTurn, Output
from ingle.service.choice_text import TokenText
from ingle.service.generation import (
    Generation,
    GenerationOptions,
    ReasoningDelta,
    TextDelta,
    TextEvent,
    ToolCalled,
    Usage,
)
from ingle.service.models import TextModel


class ChatRequest(SamplingFields, kw_only=True):
    messages: Any
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_grammar: Any = None
    reasoning_effort: Any = None
    thinking_budget: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None


UNSUPPORTED: Mapping[str, Harmless] = {
    # Fields that change nothing about an answer.
    "user": anything,
    "metadata": anything,
    "safety_identifier": anything,
    "prompt_cache_key": anything,
    "prompt_cache_retention": anything,
    # Fields that are fine as long as they ask for nothing.
    "store": only(False),
    "service_tier": only("auto", "default"),
    "verbosity": only("medium"),
    "modalities": only(["text"]),
    "functions": only([]),
    "function_call": only("none", "auto"),
    "audio": only(),
    "prediction": only(),
    "web_search_options": only(),
    "moderation": only(),
    "chat_template": only(),
    "best_of": only(1),
    "echo": only(False),
    "suffix": only(),
}


def parse(body: bytes, count_unknown: Callable[[str], None]) -> ChatRequest:
    return decode(body, ChatRequest, UNSUPPORTED, count_unknown)


def options(request: ChatRequest, model: TextModel, config: ServerConfig) -> GenerationOptions:
    limit, newer = request.max_tokens, request.max_completion_tokens
    if limit is not None and newer is not None and limit != newer:
        raise InvalidRequest(
            f"max_tokens is {limit} and max_completion_tokens is {newer}; give one of them",
            param="max_tokens",
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return generation_options(
        request,
        model,
        config,
        max_tokens=newer if newer is not None else limit,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def turn(request: ChatRequest) -> ChatTurn:
    """Raises InvalidRequest: names the field."""
    variables = request.chat_template_kwargs or {}
    thinking = wishes.thinking(request.reasoning_effort, request.thinking_budget)
    switch = variables.get("enable_thinking")
    if thinking.on is None and isinstance(switch, bool):
        thinking = replace(thinking, on=switch, param="chat_template_kwargs")
    return ChatTurn(
        messages=request.messages,
        use=wishes.tool_use(
            wishes.chat_tools(request.tools), request.tool_choice, request.parallel_tool_calls
        ),
        output=_output(request),
        thinking=thinking,
        variables=variables,
    )


def _output(request: ChatRequest) -> Output | None:
    """The API's own field, or one of those that other local servers have."""
    readers: Mapping[str, Callable[[Any, str], Output | None]] = {
        "response_format": wishes.response_format,
        "guided_json": lambda value, _: _guided_json(value),
        "guided_regex": wishes.regex,
        "guided_grammar": wishes.lark,
    }
    given = [(name, getattr(request, name)) for name in readers if getattr(request, name) is not None]
    found = {name: output for name, value in given if (output := readers[name](value, name)) is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidRequest(f"{first} and {second} exclude each other", param=second)
    return next(iter(found.values()), None)


def _guided_json(value: Any) -> Output:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise InvalidRequest("guided_json is a string that is no JSON", param="guided_json") from None
    return wishes.json_schema(value, "guided_json")


class ChunkRenderer:
    """`chat.completion.chunk` events. What never changes in a stream is encoded once."""

    def __init__(self, model: str, generation: Generation, *, logprobs: bool, with_usage: bool) -> None:
        self._head = head("chatcmpl", "chat.completion.chunk", model)
        self._prefix = b"data: " + msgspec.json.encode(self._head)[:-1] + b',"choices":[{"index":'
        self._generation, self._logprobs, self._with_usage = generation, logprobs, with_usage

    def first(self) -> bytes:
        return b"".join(
            self._other(index, b'"role":"assistant","content":""')
            for index in range(self._generation.choices)
        )

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta):
            lined = msgspec.json.encode(logprob_content(event.tokens)) if self._logprobs else b"null"
            return b"".join(
                (
                    self._prefix,
                    b'%d,"delta":{"content":' % event.index,
                    msgspec.json.encode(event.text),
                    b'},"logprobs":',
                    lined,
                    b',"finish_reason":null}]}\n\n',
                )
            )
        if isinstance(event, ReasoningDelta):
            return self._other(event.index, b'"reasoning_content":' + msgspec.json.encode(event.text))
        if isinstance(event, ToolCalled):
            return self._called(event)
        return self._prefix + b'%d,"delta":{},"logprobs":null,"finish_reason":"%b"}]}\n\n' % (
            event.index,
            event.reason.encode(),
        )

    def last(self) -> bytes:
        if not self._with_usage:
            return sse.DONE
        return sse.event({**self._head, "choices": [], "usage": usage(self._generation.usage)}) + sse.DONE

    def failed(self, error: Exception) -> bytes:
        return sse.event(openai_error(problem_of(error)))

    def _called(self, event: ToolCalled) -> bytes:
        """The head of a call, then its arguments: two chunks, as clients expect them."""
        first = {"index": event.number, **tool_call(event, "")}
        rest = {"index": event.number, "function": {"arguments": event.call.arguments}}
        return b"".join(
            self._other(event.index, b'"tool_calls":[' + msgspec.json.encode(part) + b"]")
            for part in (first, rest)
        )

    def _other(self, index: int, delta: bytes) -> bytes:
        return self._prefix + b'%d,"delta":{%b},"logprobs":null,"finish_reason":null}]}\n\n' % (index, delta)


def completion(model: str, choices: list[dict[str, Any]], tokens: Usage) -> bytes:
    return msgspec.json.encode(
        {
            **head("chatcmpl", "chat.completion", model),
            "choices": choices,
            "usage": usage(tokens),
        }
    )


def choice(index: int, done: Collected, *, logprobs: bool) -> dict[str, Any]:
    text, reasoning = done.text, done.reasoning
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not done.calls else None,
        "refusal": None,
        "annotations": [],
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    if done.calls:
        message["tool_calls"] = [tool_call(event, event.call.arguments) for event in done.calls]
    return {
        "index": index,
        "message": message,
        "logprobs": logprob_content(done.tokens) if logprobs else None,
        "finish_reason": done.reason,
    }


def tool_call(event: ToolCalled, arguments: str) -> dict[str, Any]:
    return {
        "id": event.id,
        "type": "function",
        "function": {"name": event.call.name, "arguments": arguments},
    }


def logprob_content(tokens: Sequence[TokenText]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": visible(token.data),
                "logprob": token.logprob,
                "bytes": list(token.data),
                "top_logprobs": [
                    {"token": visible(data), "logprob": logprob, "bytes": list(data)}
                    for _, data, logprob in token.top
                ],
            }
            for token in tokens
        ],
        "refusal": None,
    }
