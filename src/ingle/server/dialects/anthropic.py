"""Anthropic Messages: parse the request, render events and the whole answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server import sse
from ingle.server.answers import Collected
from ingle.server.dialects import wishes
from ingle.server.dialects.common import SamplingFields, generation_options
from ingle.server.errors import anthropic_error, problem_of
from ingle.server.fields import Harmless, anything, decode, only, shown
from ingle.service.chat import ChatTurn, Thinking, Tool, ToolUse
from ingle.service.generation import (
    ChoiceFinished,
    Generation,
    GenerationOptions,
    ReasoningDelta,
    TextDelta,
    TextEvent,
    ToolCalled,
    Usage,
)
from ingle.service.models import TextModel


class CountRequest(msgspec.Struct, kw_only=True):
    """What both routes take."""

    model: str
    messages: Any
    system: Any = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None


UNSUPPORTED: Mapping[str, Harmless] = {
    "metadata": anything,
    "service_tier": anything,
    "cache_control": anything,  # every prompt is cached
    "inference_geo": anything,
    "diagnostics": anything,
    "user_profile_id": anything,
    "workspace_id": anything,
    "speed": only("standard"),
    "container": only(),
    "context_management": only(),
    "mcp_servers": only([]),
}


def parse(body: bytes, count_unknown: Callable[[str], None]) -> MessagesRequest:
    return decode(body, MessagesRequest, UNSUPPORTED, count_unknown)


def parse_count(body: bytes, count_unknown: Callable[[str], None]) -> CountRequest:
    sampling = dict.fromkeys(MessagesRequest.__struct_fields__, anything)
    return decode(body, CountRequest, {**sampling, **UNSUPPORTED}, count_unknown)


def options(request: MessagesRequest, model: TextModel, config: ServerConfig) -> GenerationOptions:
    fields = SamplingFields(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
    )
    return generation_options(fields, model, config, max_tokens=request.max_tokens, top_logprobs=None)


def turn(request: CountRequest, model: TextModel) -> ChatTurn:
    """Raises InvalidRequest: names the field, what it holds and what is expected."""
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    system = _texts(request.system, "system")
    if system:
        messages.append({"role": "system", "content": system})
        places.append("system")
    if not isinstance(request.messages, list) or not request.messages:
        raise InvalidRequest("messages must be a non-empty list", param="messages")
    for index, entry in enumerate(wishes.items(request.messages, "messages")):
        where = f"messages[{index}]"
        for message in _messages(wishes.mapping(entry, where), where):
            messages.append(message)
            places.append(where)
    config = wishes.mapping(request.output_config or {}, "output_config")
    effort = config.get("effort")
    form = config.get("format")
    return ChatTurn(
        messages=messages,
        places=tuple(places),
        use=_tool_use(request),
        output=wishes.response_format(form, "output_config.format"),
        thinking=_thinking(request.thinking, effort, model),
    )


def _tool_use(request: CountRequest) -> ToolUse:
    tools: list[Tool] = []
    for index, entry in enumerate(wishes.items(request.tools, "tools")):
        where = f"tools[{index}]"
        f = wishes.mapping(entry, where)
        if f.get("type") not in (None, "custom"):
            raise InvalidRequest(
                f"{where}.type is {shown(f['type'])}: this server runs no tools of its own",
                param=f"{where}.type",
                code="unsupported_value",
            )
        tools.append(
            wishes.tool(f.get("name"), f.get("description"), f.get("input_schema"), f.get("strict"), where)
        )
    choice = wishes.mapping(request.tool_choice or {"type": "auto"}, "tool_choice")
    kind = choice.get("type")
    words = {"auto": "auto", "any": "required", "none": "none"}
    if kind == "tool":
        wanted: Any = {"type": "function", "name": choice.get("name")}
    elif isinstance(kind, str) and kind in words:
        wanted = words[kind]
    else:
        raise InvalidRequest(
            f"tool_choice.type is {shown(kind)}, expected auto, any, tool or none", param="tool_choice.type"
        )
    single = choice.get("disable_parallel_tool_use") is True
    return wishes.tool_use(wishes.checked(tools), wanted, not single)


def _thinking(value: Any, effort: Any, model: TextModel) -> Thinking:
    if effort is not None and effort not in ("low", "medium", "high", "xhigh", "max"):
        raise InvalidRequest(f"output_config.effort is {shown(effort)}", param="output_config.effort")
    if value is None:
        return Thinking(effort=effort, param="output_config")
    fields = wishes.mapping(value, "thinking")
    kind = fields.get("type")
    if kind == "disabled":
        return Thinking(on=False, param="thinking")
    if kind == "adaptive":  # the model may reason: one that cannot does not
        return Thinking(on=model.markup.reasoning is not None or None, effort=effort, param="thinking")
    budget = fields.get("budget_tokens")
    if kind != "enabled" or not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise InvalidRequest(
            f"thinking is {shown(value)}, expected disabled, adaptive, or enabled with budget_tokens",
            param="thinking",
        )
    return Thinking(on=True, effort=effort, budget=budget, param="thinking")


def _messages(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """One of the dialect's messages as messages of the common form: results of tools stand alone there."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(
            f"{where}.role is {shown(role)}, expected user or assistant", param=f"{where}.role"
        )
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where}.content must be a string or a list of blocks, got {shown(content)}",
            param=f"{where}.content",
        )
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for index, entry in enumerate(wishes.items(content, f"{where}.content")):
        at = f"{where}.content[{index}]"
        block = wishes.mapping(entry, at)
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            results.append(_result(block, at))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block, at))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(_string(block, "thinking", at))
        elif kind == "redacted_thinking" and role == "assistant":
            continue  # nobody but its author can read it
        else:
            parts.append(_part(block, at))
    out = results
    if parts or calls or thoughts or not results:
        message = {"role": role, "content": parts}
        if calls:
            message["tool_calls"] = calls
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        out = [*results, message]
    return out


def _part(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _string(block, "text", at)}
    if kind == "image":
        source = wishes.mapping(block.get("source"), f"{at}.source")
        if source.get("type") == "base64":
            data = _string(source, "data", f"{at}.source")
            return {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{data}"}}
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": _string(source, "url", f"{at}.source")}}
        raise InvalidRequest(
            f"{at}.source.type is {shown(source.get('type'))}, expected base64 or url",
            param=f"{at}.source.type",
            code="unsupported_value",
        )
    raise InvalidRequest(
        f"{at}.type is {shown(kind)}, which is not supported here",
        param=f"{at}.type",
        code="unsupported_value",
    )


def _result(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    content = block.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        inner = wishes.items(content, f"{at}.content")
        content = [
            _part(wishes.mapping(part, f"{at}.content[{i}]"), f"{at}.content[{i}]")
            for i, part in enumerate(inner)
        ]
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": content}


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    arguments = wishes.mapping(block.get("input"), f"{at}.input")
    function = {"name": _string(block, "name", at), "arguments": dict(arguments)}
    return {"id": _string(block, "id", at), "type": "function", "function": function}


def _texts(value: Any, where: str) -> str:
    """A string, or text blocks as one."""
    if value is None or isinstance(value, str):
        return value or ""
    texts: list[str] = []
    for index, entry in enumerate(wishes.items(value, where)):
        at = f"{where}[{index}]"
        block = wishes.mapping(entry, at)
        if block.get("type") != "text":
            raise InvalidRequest(f"{at}.type is {shown(block.get('type'))}, expected text", param=at)
        texts.append(_string(block, "text", at))
    return "\n\n".join(texts)


def _string(fields: Mapping[str, Any], name: str, at: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{name} must be a string, got {shown(value)}", param=f"{at}.{name}")
    return value


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _reason(reason: str, stop: str | None) -> dict[str, Any]:
    return {"stop_reason": "stop_sequence" if stop is not None else _REASONS[reason], "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation": None,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "inference_geo": None,
        "server_tool_use": None,
        "service_tier": None,
    }


def _head(model: str, usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(usage),
    }


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _tool_use_block(event: ToolCalled, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "caller": {"type": "direct"},
        "id": event.id.replace("call_", "toolu_"),
        "name": event.call.name,
        "input": arguments,
    }


def message(model: str, done: Collected, usage: Usage) -> bytes:
    content: list[dict[str, Any]] = []
    for block in done.blocks:
        if isinstance(block, ToolCalled):
            content.append(_tool_use_block(block, msgspec.json.decode(block.call.arguments)))
        elif block.reasons:
            content.append({"type": "thinking", "thinking": block.text, "signature": ""})
        else:
            content.append(_text_block(block.text))
    if not content:
        content.append(_text_block(""))
    body = {**_head(model, usage), "content": content, **_reason(done.reason, done.stop)}
    return msgspec.json.encode(body)


@dataclass(slots=True)
class EventRenderer:
    """Implements `StreamRenderer`: blocks are opened and closed as the kind of what is written changes."""

    model: str
    generation: Generation
    _open: str = ""  # kind of the block that is open
    _index: int = -1
    _prefix: bytes = b""
    _end: ChoiceFinished | None = field(default=None)

    def first(self) -> bytes:
        start = {"type": "message_start", "message": _head(self.model, self.generation.usage)}
        return sse.named("message_start", start) + sse.named("ping", {"type": "ping"})

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta):
            if not event.text:
                return b""
            opened = self._opened("text", _text_block(""), b'"text_delta","text":')
            return opened + self._prefix + msgspec.json.encode(event.text) + b"}}\n\n"
        if isinstance(event, ReasoningDelta):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            opened = self._opened("thinking", block, b'"thinking_delta","thinking":')
            return opened + self._prefix + msgspec.json.encode(event.text) + b"}}\n\n"
        if isinstance(event, ToolCalled):
            block = _tool_use_block(event, {})
            opened = self._closed() + self._opened("tool_use", block, b'"input_json_delta","partial_json":')
            return (
                opened + self._prefix + msgspec.json.encode(event.call.arguments) + b"}}\n\n" + self._closed()
            )
        self._end = event
        return b""

    def last(self) -> bytes:
        closed = self._closed()
        if self._index < 0:
            closed = self._opened("text", _text_block(""), b"") + self._closed()
        assert self._end is not None, "a generation ends with a finished choice"
        delta = _reason(self._end.reason, self._end.stop)
        end = {"type": "message_delta", "delta": delta, "usage": _usage(self.generation.usage)}
        return closed + sse.named("message_delta", end) + sse.named("message_stop", {"type": "message_stop"})

    def failed(self, error: Exception) -> bytes:
        return sse.named("error", anthropic_error(problem_of(error)))

    def _opened(self, kind: str, block: Mapping[str, Any], delta: bytes) -> bytes:
        if self._open == kind:
            return b""
        out = self._closed()
        self._open, self._index = kind, self._index + 1
        self._prefix = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
            % (self._index, delta)
        )
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return out + sse.named("content_block_start", start)

    def _closed(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return sse.named("content_block_stop", {"type": "content_block_stop", "index": self._index})
