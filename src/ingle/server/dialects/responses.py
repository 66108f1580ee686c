"""OpenAI Responses: parse the request, and items as messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server.dialects import wishes
from ingle.server.dialects.common import SamplingFields, StreamOptions, generation_options
from ingle.server.fields import Harmless, anything, decode, only, shown
from ingle.service.chat import ChatTurn, Tool
from ingle.service.generation import GenerationOptions, Usage
from ingle.service.models import TextModel

MAX_ITEMS = 10_000


class ResponsesRequest(msgspec.Struct, kw_only=True):
    model: str
    input: Any
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: Any = None
    reasoning: Any = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Beside the API, as in Chat Completions.
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    ignore_eos: bool = False


UNSUPPORTED: Mapping[str, Harmless] = {
    "user": anything,
    "prompt_cache_retention": anything,
    "client_metadata": anything,
    "background": only(False),
    "service_tier": only("auto", "default"),
    "truncation": only("disabled"),
    "max_tool_calls": only(),  # this server calls no tools itself
    "conversation": only(),
    "context_management": only(),
    "prompt": only(),
    "moderation": only(),
}

_INCLUDED = ("reasoning.encrypted_content", "message.output_text.logprobs", "message.input_image.image_url")


def parse(body: bytes, count_unknown: Callable[[str], None]) -> ResponsesRequest:
    return decode(body, ResponsesRequest, UNSUPPORTED, count_unknown)


def wants_logprobs(request: ResponsesRequest) -> bool:
    return request.top_logprobs is not None or "message.output_text.logprobs" in (request.include or ())


def options(request: ResponsesRequest, model: TextModel, config: ServerConfig) -> GenerationOptions:
    fields = SamplingFields(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        ignore_eos=request.ignore_eos,
    )
    top = (request.top_logprobs or 0) if wants_logprobs(request) else None
    return generation_options(fields, model, config, max_tokens=request.max_output_tokens, top_logprobs=top)


def input_items(request: ResponsesRequest) -> list[Any]:
    """The request's own items."""
    if isinstance(request.input, str):
        return [{"type": "message", "role": "user", "content": request.input}]
    items = wishes.items(request.input, "input")
    if not items:
        raise InvalidRequest("input must hold at least one item", param="input")
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(f"input holds {len(items)} items, the limit is {MAX_ITEMS}", param="input")
    return items


def turn(request: ResponsesRequest, items: Sequence[Any], earlier: int = 0) -> ChatTurn:
    """`items`: the whole conversation, of which the first `earlier` ones were kept from earlier responses.

    Raises:
        InvalidRequest: names the field, what it holds and what is expected.
    """
    for name in request.include or ():
        if name not in _INCLUDED:
            raise InvalidRequest(
                f"include holds {shown(name)}, which is not supported here",
                param="include",
                code="unsupported_value",
            )
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
        places.append("instructions")
    for index, item in enumerate(items):
        kept = index < earlier
        where = f"previous_response_id: item {index}" if kept else f"input[{index - earlier}]"
        _add(messages, places, wishes.mapping(item, where), where)
    text = wishes.mapping(request.text or {}, "text")
    if text.get("verbosity") not in (None, "medium"):
        raise InvalidRequest(
            f"text.verbosity is {shown(text['verbosity'])}, which is not supported here",
            param="text.verbosity",
            code="unsupported_value",
        )
    reasoning = wishes.mapping(request.reasoning or {}, "reasoning")
    return ChatTurn(
        messages=messages,
        places=tuple(places),
        use=wishes.tool_use(_tools(request.tools), request.tool_choice, request.parallel_tool_calls),
        output=wishes.response_format(text.get("format"), "text.format"),
        thinking=wishes.thinking(reasoning.get("effort"), None, "reasoning.effort"),
    )


def _tools(tools: Any) -> tuple[Tool, ...]:
    out: list[Tool] = []
    for index, entry in enumerate(wishes.items(tools, "tools")):
        where = f"tools[{index}]"
        f = wishes.mapping(entry, where)
        if f.get("type") != "function":
            raise InvalidRequest(
                f"{where}.type is {shown(f.get('type'))}, expected function: no tools run here",
                param=f"{where}.type",
                code="unsupported_value",
            )
        out.append(
            wishes.tool(f.get("name"), f.get("description"), f.get("parameters"), f.get("strict"), where)
        )
    return wishes.checked(out)


def _add(messages: list[dict[str, Any]], places: list[str], item: Mapping[str, Any], where: str) -> None:
    """One item as a message; what belongs to one turn of the assistant becomes one message."""
    kind = item.get("type", "message")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "message":
        role, content = item.get("role"), item.get("content")
        parts = content if isinstance(content, str) else _parts(content, f"{where}.content")
        if role == "assistant" and last is not None and "content" not in last:
            last["content"] = parts
            return
        messages.append({"role": role, "content": parts})
    elif kind == "reasoning":
        text = _reasoning(item, where)
        if not text:
            return
        messages.append({"role": "assistant", "reasoning_content": text})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if last is not None:
            last.setdefault("tool_calls", []).append(call)
            return
        messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else _parts(output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    else:
        raise InvalidRequest(
            f"{where}.type is {shown(kind)}, which is not supported here",
            param=f"{where}.type",
            code="unsupported_value",
        )
    places.append(where)


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    content = wishes.items(item.get("content"), f"{where}.content")
    texts = [wishes.mapping(part, f"{where}.content").get("text") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _parts(content: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where} must be a string or a list of parts, got {shown(content)}", param=where
        )
    return [
        _part(wishes.mapping(part, f"{where}[{i}]"), f"{where}[{i}]")
        for i, part in enumerate(wishes.items(content, where))
    ]


def _part(part: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal")}
    if kind == "input_image":
        if part.get("image_url") is None:
            raise InvalidRequest(
                f"{at}.image_url is required; files are not kept here", param=f"{at}.image_url"
            )
        return {
            "type": "image_url",
            "image_url": {"url": part["image_url"], "detail": part.get("detail")},
        }
    if kind == "input_file":
        if part.get("file_url") is not None:
            raise InvalidRequest(
                f"{at}.file_url is not supported here; send file_data",
                param=f"{at}.file_url",
                code="unsupported_value",
            )
        return {"type": "file", "file": {"file_data": part.get("file_data"), "file_id": part.get("file_id")}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_video":
        return {"type": "video_url", "video_url": {"url": part.get("video_url")}}
    raise InvalidRequest(
        f"{at}.type is {shown(kind)}, which is not supported here",
        param=f"{at}.type",
        code="unsupported_value",
    )


@dataclass(frozen=True, slots=True)
class Resource:
    """What a response object says of its request."""

    request: ResponsesRequest
    model: TextModel
    id: str
    created: int

    @classmethod
    def of(cls, request: ResponsesRequest, model: TextModel) -> Resource:
        return cls(request, model, f"resp_{uuid.uuid4().hex}", int(time.time()))

    def body(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: Usage | None,
        *,
        incomplete: str | None = None,
        error: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        r, text = self.request, self.request.text or {}
        reasoning = r.reasoning or {}
        defaults = self.model.sampling_defaults
        ended = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if ended else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "instructions": r.instructions,
            "max_output_tokens": r.max_output_tokens,
            "max_tool_calls": None,
            "model": self.model.name,
            "output": output,
            "parallel_tool_calls": r.parallel_tool_calls is not False,
            "previous_response_id": r.previous_response_id,
            "prompt_cache_key": r.prompt_cache_key,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "safety_identifier": r.safety_identifier,
            "service_tier": "default",
            "store": r.store,
            "temperature": _given(r.temperature, defaults.get("temperature", 1.0)),
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": "auto" if r.tool_choice is None else r.tool_choice,
            "tools": [_tool(entry) for entry in r.tools or ()],
            "top_logprobs": r.top_logprobs or 0,
            "top_p": _given(r.top_p, defaults.get("top_p", 1.0)),
            "presence_penalty": _given(r.presence_penalty, 0.0),
            "frequency_penalty": _given(r.frequency_penalty, 0.0),
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": None,
            "metadata": r.metadata or {},
        }


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _tool(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **entry}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "drafted_tokens": usage.drafted_tokens,
            "accepted_tokens": usage.accepted_tokens,
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
