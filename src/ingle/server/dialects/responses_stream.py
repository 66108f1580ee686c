"""OpenAI Responses: the items of an answer as they are written; a stream ends with the whole."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from ingle.server import sse
from ingle.server.dialects.openai_chat import logprob_content
from ingle.server.dialects.responses import Resource
from ingle.server.errors import problem_of
from ingle.service.choice_text import TokenText
from ingle.service.generation import Generation, ReasoningDelta, TextDelta, TextEvent, ToolCalled


class ResponseWriter:
    """Implements `StreamRenderer`."""

    def __init__(self, resource: Resource, generation: Generation, *, logprobs: bool) -> None:
        self._resource, self._generation, self._logprobs = resource, generation, logprobs
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the message or the reasoning that is being written
        self._texts: list[str] = []
        self._tokens: list[TokenText] = []
        self._number = 0
        self._delta = b""
        self._length = False

    def first(self) -> bytes:
        body = self._resource.body("in_progress", [], None)
        created = self._event("response.created", response=body)
        return created + self._event("response.in_progress", response=body)

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta):
            opened = self._opened("message") if event.text else b""
            self._tokens += event.tokens
            return opened + self._written(event.text, event.tokens) if event.text else b""
        if isinstance(event, ReasoningDelta):
            return self._opened("reasoning") + self._written(event.text, ())
        if isinstance(event, ToolCalled):
            return self._called(event)
        self._length = event.reason == "length"
        out = self._closed()
        if not self._items:
            out += self._opened("message") + self._closed()
        return out

    def last(self) -> bytes:
        body = self.response()
        return self._event(f"response.{body['status']}", response=body) + sse.DONE

    def failed(self, error: Exception) -> bytes:
        problem = problem_of(error)
        told = {"code": problem.code, "message": problem.message}
        body = self._resource.body("failed", self._items, self._generation.usage, error=told)
        return self._event("response.failed", response=body) + sse.DONE

    def response(self) -> dict[str, Any]:
        """The finished response, once all events are written."""
        status, incomplete = ("incomplete", "max_output_tokens") if self._length else ("completed", None)
        return self._resource.body(status, self._items, self._generation.usage, incomplete=incomplete)

    def _opened(self, kind: str) -> bytes:
        if self._open is not None and self._open["type"] == kind:
            return b""
        out = self._closed()
        prefix = "msg" if kind == "message" else "rs"
        item: dict[str, Any] = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
        item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        self._open, self._texts, self._tokens = item, [], []
        index = len(self._items)
        out += self._event("response.output_item.added", output_index=index, item=item)
        part = {"item_id": item["id"], "output_index": index, "content_index": 0}
        out += self._event("response.content_part.added", **part, part=self._part(""))
        name = f"response.{_TEXTS[kind]}.delta"
        head = msgspec.json.encode({"type": name, **part})[:-1]
        self._delta = b"event: %b\ndata: %b" % (name.encode(), head)
        return out

    def _written(self, text: str, tokens: tuple[TokenText, ...]) -> bytes:
        """Most of a stream is this: what never changes in an item is encoded once."""
        self._texts.append(text)
        lined = b""
        if self._open is not None and self._open["type"] == "message":
            entries = logprob_content(tokens)["content"] if self._logprobs else []
            lined = b',"logprobs":' + msgspec.json.encode(entries)
        number, self._number = self._number, self._number + 1
        return b'%b,"sequence_number":%d,"delta":%b%b}\n\n' % (
            self._delta,
            number,
            msgspec.json.encode(text),
            lined,
        )

    def _part(self, text: str) -> dict[str, Any]:
        assert self._open is not None
        if self._open["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        entries = logprob_content(self._tokens)["content"] if self._logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": entries}

    def _closed(self) -> bytes:
        if self._open is None:
            return b""
        item, text = self._open, "".join(self._texts)
        part = self._part(text)
        place = {"item_id": item["id"], "output_index": len(self._items), "content_index": 0}
        lined = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
        out = self._event(f"response.{_TEXTS[item['type']]}.done", **place, text=text, **lined)
        out += self._event("response.content_part.done", **place, part=part)
        self._open = None
        done = {**item, "status": "incomplete" if self._length else "completed", "content": [part]}
        return out + self._finished(done)

    def _called(self, event: ToolCalled) -> bytes:
        out = self._closed()
        index = len(self._items)
        item: dict[str, Any] = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": event.id,
            "name": event.call.name,
            "arguments": "",
        }
        place = {"item_id": item["id"], "output_index": index}
        arguments = event.call.arguments
        out += self._event("response.output_item.added", output_index=index, item=item)
        out += self._event("response.function_call_arguments.delta", **place, delta=arguments)
        out += self._event(
            "response.function_call_arguments.done", **place, arguments=arguments, name=event.call.name
        )
        return out + self._finished({**item, "status": "completed", "arguments": arguments})

    def _finished(self, item: dict[str, Any]) -> bytes:
        index = len(self._items)
        self._items.append(item)
        return self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.named(kind, {"type": kind, "sequence_number": number, **fields})


_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
