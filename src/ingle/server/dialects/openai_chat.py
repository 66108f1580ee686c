"""OpenAI Chat Completions: parse the request, render chunks and the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server import sse
from ingle.server.dialects.common import SamplingFields, generation_options, head, usage, visible
from ingle.server.fields import Harmless, anything, decode, only
from ingle.service.choice_text import TokenText
from ingle.service.generation import GenerationOptions, Usage
from ingle.service.models import TextModel


class ChatRequest(SamplingFields, kw_only=True):
    messages: Any
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


UNSUPPORTED: Mapping[str, Harmless] = {
    # Fields that change nothing about an answer.
    "user": anything,
    "metadata": anything,
    "safety_identifier": anything,
    "prompt_cache_key": anything,
    "prompt_cache_retention": anything,
    "parallel_tool_calls": anything,  # without tools there is nothing to parallelise
    # Fields that are fine as long as they ask for nothing.
    "store": only(False),
    "service_tier": only("auto", "default"),
    "verbosity": only("medium"),
    "reasoning_effort": only("none"),
    "modalities": only(["text"]),
    "response_format": only({"type": "text"}),
    "tools": only([]),
    "tool_choice": only("none", "auto"),
    "functions": only([]),
    "function_call": only("none", "auto"),
    "audio": only(),
    "prediction": only(),
    "web_search_options": only(),
    "moderation": only(),
    "chat_template": only(),
    "chat_template_kwargs": only({}),
    "guided_json": only(),
    "guided_regex": only(),
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


class ChunkRenderer:
    """`chat.completion.chunk` events. What never changes in a stream is encoded once."""

    def __init__(self, model: str, *, logprobs: bool) -> None:
        self._head = head("chatcmpl", "chat.completion.chunk", model)
        self._prefix = b"data: " + msgspec.json.encode(self._head)[:-1] + b',"choices":[{"index":'
        self._logprobs = logprobs

    def role(self, index: int) -> bytes:
        return (
            self._prefix
            + b'%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
            % index
        )

    def delta(self, index: int, text: str, tokens: Sequence[TokenText]) -> bytes:
        lined = msgspec.json.encode(logprob_content(tokens)) if self._logprobs else b"null"
        return b"".join(
            (
                self._prefix,
                b'%d,"delta":{"content":' % index,
                msgspec.json.encode(text),
                b'},"logprobs":',
                lined,
                b',"finish_reason":null}]}\n\n',
            )
        )

    def finish(self, index: int, reason: str) -> bytes:
        reason_json = msgspec.json.encode(reason)
        return self._prefix + b'%d,"delta":{},"logprobs":null,"finish_reason":%b}]}\n\n' % (
            index,
            reason_json,
        )

    def usage(self, tokens: Usage) -> bytes:
        return sse.event({**self._head, "choices": [], "usage": usage(tokens)})


def completion(model: str, choices: list[dict[str, Any]], tokens: Usage) -> bytes:
    return msgspec.json.encode(
        {
            **head("chatcmpl", "chat.completion", model),
            "choices": choices,
            "usage": usage(tokens),
        }
    )


def choice(
    index: int, text: str, tokens: Sequence[TokenText], reason: str, *, logprobs: bool
) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": logprob_content(tokens) if logprobs else None,
        "finish_reason": reason,
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
