"""Ollama's chat: parse the request, render lines of JSON and the whole answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server.answers import Collected
from ingle.server.dialects import wishes
from ingle.server.dialects.common import SamplingFields, generation_options
from ingle.server.errors import ollama_error, problem_of
from ingle.server.fields import Harmless, anything, convert, decode, only, shown
from ingle.service.chat import ChatTurn, Output, Thinking
from ingle.service.generation import (
    ChoiceFinished,
    Generation,
    GenerationOptions,
    ReasoningDelta,
    TextDelta,
    TextEvent,
    ToolCalled,
)
from ingle.service.models import TextModel


class OllamaRequest(msgspec.Struct, kw_only=True):
    model: str
    messages: Any
    stream: bool = True
    tools: Any = None
    format: Any = None
    options: dict[str, Any] | None = None
    think: Any = None


class Options(msgspec.Struct, kw_only=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    num_predict: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


UNSUPPORTED: Mapping[str, Harmless] = {
    "keep_alive": anything,  # models are kept as the server was started
    "raw": only(False),
    "template": only(""),
    "logprobs": only(False),
    "top_logprobs": only(0),
}
# How a model is loaded there; here the server decides.
_LOADING: Mapping[str, Harmless] = dict.fromkeys(
    ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "numa", "num_keep"), anything
) | {"repeat_last_n": only(-1), "typical_p": only(1, 1.0), "mirostat": only(0)}


def parse(body: bytes, count_unknown: Callable[[str], None]) -> OllamaRequest:
    return decode(body, OllamaRequest, UNSUPPORTED, count_unknown)


def options(
    request: OllamaRequest, model: TextModel, config: ServerConfig, count_unknown: Callable[[str], None]
) -> GenerationOptions:
    given = convert(request.options or {}, Options, _LOADING, count_unknown)
    limit = given.num_predict
    if limit is not None and limit < 1:
        if limit not in (-1, -2):
            raise InvalidRequest(
                f"options.num_predict is {limit}, expected at least 1, or -1", param="options.num_predict"
            )
        limit = None
    fields = SamplingFields(
        model=request.model,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        seed=given.seed,
        stop=given.stop,
        repetition_penalty=given.repeat_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
    )
    return generation_options(fields, model, config, max_tokens=limit, top_logprobs=None)


def turn(request: OllamaRequest) -> ChatTurn:
    messages = [
        _message(wishes.mapping(entry, f"messages[{i}]"), f"messages[{i}]", i)
        for i, entry in enumerate(wishes.items(request.messages, "messages"))
    ]
    _name_results(messages)
    return ChatTurn(
        messages=messages,
        use=wishes.tool_use(wishes.chat_tools(request.tools), None, None),
        output=_output(request.format),
        thinking=_thinking(request.think),
    )


def _output(form: Any) -> Output | None:
    if form is None or form == "":
        return None
    if form == "json":
        return Output("json_object", param="format")
    return wishes.json_schema(form, "format")


def _thinking(think: Any) -> Thinking:
    if isinstance(think, bool):
        return Thinking(on=think, param="think")
    if think in (None, "low", "medium", "high"):
        return Thinking(on=None if think is None else True, effort=think, param="think")
    raise InvalidRequest(f"think is {shown(think)}, expected true, false, low, medium or high", param="think")


def _message(message: Mapping[str, Any], where: str, number: int) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.get("role"), "content": message.get("content", "")}
    images = wishes.items(message.get("images"), f"{where}.images")
    if images:
        parts: list[dict[str, Any]] = []
        for index, image in enumerate(images):
            if not isinstance(image, str):
                raise InvalidRequest(
                    f"{where}.images[{index}] must be base64, got {shown(image)}",
                    param=f"{where}.images[{index}]",
                )
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/*;base64,{image}"}})
        out["content"] = [*parts, {"type": "text", "text": out["content"]}]
    if message.get("thinking") is not None:
        out["reasoning_content"] = message["thinking"]
    calls = wishes.items(message.get("tool_calls"), f"{where}.tool_calls")
    if calls:
        # The dialect has no ids; those of the common form only have to fit each other.
        out["tool_calls"] = []
        for index, entry in enumerate(calls):
            at = f"{where}.tool_calls[{index}]"
            call = wishes.mapping(entry, at)
            function = wishes.mapping(call.get("function"), f"{at}.function")
            id = call.get("id", f"call{number}-{index}")
            out["tool_calls"].append({"id": id, "type": "function", "function": function})
    if message.get("role") == "tool":
        name = message.get("tool_name", message.get("name"))
        out |= {"name": name, "tool_call_id": message.get("tool_call_id")}
    return out


def _name_results(messages: list[dict[str, Any]]) -> None:
    """A result without an id answers the first call before it that has no result yet."""
    waiting: list[tuple[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            waiting.append((call["id"], call["function"].get("name")))
        if message["role"] == "tool" and message.get("tool_call_id") is None:
            name = message.get("name")
            found = next((w for w in waiting if name is None or w[1] == name), ("none", name))
            message["tool_call_id"] = found[0]
            if found in waiting:
                waiting.remove(found)


class LineRenderer:
    """Implements `StreamRenderer`."""

    def __init__(self, model: str, generation: Generation) -> None:
        self._model, self._generation = model, generation
        self._started = time.monotonic_ns()
        self._first: int | None = None
        self._done = Collected()

    def first(self) -> bytes:
        return b""

    def event(self, event: TextEvent) -> bytes:
        self._first = self._first or time.monotonic_ns()
        self._done.add(event)
        if isinstance(event, ChoiceFinished):
            return b""
        if isinstance(event, TextDelta):
            return self._line({"content": event.text}) if event.text else b""
        if isinstance(event, ReasoningDelta):
            return self._line({"content": "", "thinking": event.text})
        return self._line({"content": "", "tool_calls": [_call(event)]})

    def last(self) -> bytes:
        return _encoded(self._ended({"role": "assistant", "content": ""}))

    def failed(self, error: Exception) -> bytes:
        return _encoded(ollama_error(problem_of(error)))

    def answer(self) -> bytes:
        """The whole in one piece, once all events were seen."""
        done = self._done
        message: dict[str, Any] = {"role": "assistant", "content": done.text}
        if done.reasoning:
            message["thinking"] = done.reasoning
        if done.calls:
            message["tool_calls"] = [_call(event) for event in done.calls]
        return _encoded(self._ended(message))

    def _line(self, message: dict[str, Any]) -> bytes:
        return _encoded({**self._head(), "message": {"role": "assistant", **message}, "done": False})

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()}

    def _ended(self, message: dict[str, Any]) -> dict[str, Any]:
        now, usage = time.monotonic_ns(), self._generation.usage
        first = self._first or now
        return {
            **self._head(),
            "message": message,
            "done": True,
            "done_reason": "length" if self._done.reason == "length" else "stop",
            "total_duration": now - self._started,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": first - self._started,
            "eval_count": usage.completion_tokens,
            "eval_duration": now - first,
        }


def _call(event: ToolCalled) -> dict[str, Any]:
    arguments = msgspec.json.decode(event.call.arguments)
    return {"function": {"name": event.call.name, "arguments": arguments}}


def _encoded(data: Any) -> bytes:
    return msgspec.json.encode(data) + b"\n"
