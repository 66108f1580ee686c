"""Chat messages from any client to the plain form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from ingle.contracts.media import MediaPart
from ingle.errors import InvalidRequest
from ingle.text.media_parts import MEDIA_TYPES, media_part, short

_MAY_SHOW = ("user", "tool")  # roles whose messages may hold media
ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise(
    messages: object, media: list[MediaPart] | None = None, places: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Checked copies; system and developer messages become one, at the front.

    Contents are strings. Only where a message holds media its content is a list of text parts and
    `{"type": "media", "index": i}`, i counting in `media`, to which the pieces are added in order.
    Without `media` nothing but text is taken. `places` names the messages for errors, if not by their index.

    Raises:
        InvalidRequest: names the message and field, what it holds and what is expected.
    """
    if not isinstance(messages, list):
        raise InvalidRequest(f"messages must be a list, got {short(messages)}", param="messages")
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    system: list[str] = []
    rest: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # names of tools, by the ids of their calls
    for index, entry in enumerate(cast("list[Any]", messages)):
        where = places[index] if index < len(places) else f"messages[{index}]"
        message = _message(entry, where, media)
        called.update((c["id"], c["function"]["name"]) for c in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] in called:
            message.setdefault("name", called[message["tool_call_id"]])
        if message["role"] == "system":
            system.append(message["content"])
        else:
            rest.append(message)
    if system:
        rest.insert(0, {"role": "system", "content": "\n\n".join(system)})
    return rest


def _message(entry: Any, where: str, media: list[MediaPart] | None) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where} must be an object, got {short(entry)}", param=where)
    fields = cast("dict[str, Any]", entry)
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        expected = ", ".join(ROLES)
        raise InvalidRequest(
            f"{where}.role is {short(role)}, expected one of {expected}", param=f"{where}.role"
        )
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = fields.get("tool_calls") if role == "assistant" else None
    thought = fields.get("reasoning_content", fields.get("reasoning")) if role == "assistant" else None
    if fields.get("content") is None and (calls or thought):
        message["content"] = ""
    else:
        taken = media if role in _MAY_SHOW else None
        message["content"] = _content(fields.get("content"), f"{where}.content", role, taken)
    if calls is not None:
        message["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    if role == "tool":
        message["tool_call_id"] = _string(fields.get("tool_call_id"), f"{where}.tool_call_id")
    if thought is not None:
        message["reasoning_content"] = _string(thought, f"{where}.reasoning_content")
    if fields.get("name") is not None:
        message["name"] = _string(fields["name"], f"{where}.name")
    return message


def _content(
    content: Any, where: str, role: str, media: list[MediaPart] | None
) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where} must be a string or a list of parts, got {short(content)}", param=where
        )
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(cast("list[Any]", content)):
        at = f"{where}[{index}]"
        if not isinstance(part, dict):
            raise InvalidRequest(f"{at} must be an object, got {short(part)}", param=at)
        fields = cast("dict[str, Any]", part)
        kind = fields.get("type")
        if kind in MEDIA_TYPES and media is not None:
            parts.append({"type": "media", "index": len(media)})
            media.append(media_part(fields, at))
        elif kind in ("text", "refusal"):
            parts.append({"type": "text", "text": _string(fields.get(kind), f"{at}.{kind}")})
        else:
            raise InvalidRequest(
                f"{at}.type is {short(kind)}; {role} messages take text parts here", param=f"{at}.type"
            )
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not calls:
        raise InvalidRequest(f"{where} must be a non-empty list, got {short(calls)}", param=where)
    out: list[dict[str, Any]] = []
    for index, call in enumerate(cast("list[Any]", calls)):
        at = f"{where}[{index}]"
        if not isinstance(call, dict):
            raise InvalidRequest(f"{at} must be an object, got {short(call)}", param=at)
        fields = cast("dict[str, Any]", call)
        function = fields.get("function")
        if fields.get("type", "function") != "function" or not isinstance(function, dict):
            raise InvalidRequest(f"{at} must be a function call", param=at)
        named = cast("dict[str, Any]", function)
        arguments = named.get("arguments", "")
        if not isinstance(arguments, (str, dict)):
            raise InvalidRequest(
                f"{at}.function.arguments must be a string, got {short(arguments)}",
                param=f"{at}.function.arguments",
            )
        out.append(
            {
                "id": _string(fields.get("id"), f"{at}.id"),
                "type": "function",
                "function": {
                    "name": _string(named.get("name"), f"{at}.function.name"),
                    "arguments": _parsed(cast("str | dict[str, Any]", arguments)),
                },
            }
        )
    return out


def _parsed(arguments: str | dict[str, Any]) -> Any:
    """Templates walk over an object; a string that is none (a model's slip) stays as it was."""
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments  # pyright: ignore[reportUnknownVariableType]
    return arguments


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string, got {short(value)}", param=where)
    return value
