"""Tools, structured outputs and reasoning in the OpenAI dialects' shapes, to what the service takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ingle.errors import InvalidRequest
from ingle.server.fields import shown
from ingle.service.chat import Output, Thinking, Tool, ToolUse

MAX_TOOLS = 512
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def tool(name: Any, description: Any, parameters: Any, strict: Any, where: str) -> Tool:
    """Raises InvalidRequest: names the field, its value and what is expected."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{where}.name is {shown(name)}, expected 1 to 128 letters, digits, '_', '-' or '.'",
            param=f"{where}.name",
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"{where}.description must be a string, got {shown(description)}", param=f"{where}.description"
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{where}.parameters must be a JSON schema, got {shown(parameters)}", param=f"{where}.parameters"
        )
    schema = cast("dict[str, Any]", parameters or {})
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.parameters describes {shown(schema['type'])}, expected 'object'",
            param=f"{where}.parameters",
        )
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(
            f"{where}.strict must be true or false, got {shown(strict)}", param=f"{where}.strict"
        )
    return Tool(name, description or "", schema, bool(strict))


def checked(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Raises InvalidRequest: too many, or a name twice."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools holds {len(tools)}, the limit is {MAX_TOOLS}", param="tools")
    seen: set[str] = set()
    for entry in tools:
        if entry.name in seen:
            raise InvalidRequest(f"tools holds {entry.name!r} twice", param="tools")
        seen.add(entry.name)
    return tuple(tools)


def chat_tools(tools: Any) -> tuple[Tool, ...]:
    """Chat Completions' list: `{"type": "function", "function": {...}}`."""
    out: list[Tool] = []
    for index, entry in enumerate(items(tools, "tools")):
        where = f"tools[{index}]"
        fields = mapping(entry, where)
        if fields.get("type", "function") != "function":
            raise InvalidRequest(
                f"{where}.type is {shown(fields['type'])}, expected 'function'",
                param=f"{where}.type",
                code="unsupported_value",
            )
        where += ".function"
        f = mapping(fields.get("function"), where)
        out.append(tool(f.get("name"), f.get("description"), f.get("parameters"), f.get("strict"), where))
    return checked(out)


def tool_use(tools: tuple[Tool, ...], choice: Any, parallel: bool | None) -> ToolUse:
    """`choice` as both OpenAI dialects have it: a word, or an object that names a function."""
    parallel = parallel is not False
    if choice is None:
        return ToolUse(tools, "auto", parallel=parallel)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise InvalidRequest(
                f"tool_choice is {shown(choice)}, expected none, auto, required or a function",
                param="tool_choice",
            )
        return ToolUse(tools, choice, parallel=parallel)
    fields = mapping(choice, "tool_choice")
    kind = fields.get("type")
    if kind == "allowed_tools":
        return _allowed(tools, fields, parallel)
    inner = fields.get("function", fields)
    name = cast("Mapping[str, Any]", inner).get("name") if isinstance(inner, Mapping) else None
    if kind != "function" or not isinstance(name, str):
        raise InvalidRequest(
            f"tool_choice is {shown(choice)}, expected none, auto, required or a function",
            param="tool_choice",
        )
    return ToolUse(tools, name, named=True, parallel=parallel)


def _allowed(tools: tuple[Tool, ...], fields: Mapping[str, Any], parallel: bool) -> ToolUse:
    fields = mapping(fields.get("allowed_tools", fields), "tool_choice.allowed_tools")
    names: set[Any] = set()
    for index, entry in enumerate(items(fields.get("tools"), "tool_choice.tools")):
        inner = mapping(entry, f"tool_choice.tools[{index}]")
        names.add(str(mapping(inner.get("function", inner), f"tool_choice.tools[{index}]").get("name")))
    mode = fields.get("mode", "auto")
    unknown = names - {entry.name for entry in tools}
    if unknown or mode not in ("auto", "required"):
        problem = f"names {sorted(unknown)[0][:64]!r}" if unknown else f"has the mode {shown(mode)}"
        raise InvalidRequest(f"tool_choice {problem}, which is not there", param="tool_choice")
    return ToolUse(tuple(entry for entry in tools if entry.name in names), mode, parallel=parallel)


def response_format(value: Any, param: str = "response_format") -> Output | None:
    """`text`, `json_object`, `json_schema`, and beside the API `regex` and `lark`. The schema may stand in
    `json_schema` (Chat Completions) or in the object itself (Responses)."""
    if value is None:
        return None
    fields = mapping(value, param)
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Output("json_object", param=param)
    if kind == "json_schema":
        inner = mapping(fields.get("json_schema", fields), f"{param}.json_schema")
        return json_schema(inner.get("schema"), f"{param}.json_schema.schema")
    if kind == "regex":
        return regex(fields.get("regex"), f"{param}.regex")
    if kind in ("lark", "grammar"):
        return lark(fields.get(kind), f"{param}.{kind}")
    raise InvalidRequest(
        f"{param}.type is {shown(kind)}, expected text, json_object, json_schema, regex or lark",
        param=f"{param}.type",
        code="unsupported_value",
    )


def json_schema(schema: Any, param: str) -> Output:
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequest(f"{param} must be a JSON schema, got {shown(schema)}", param=param)
    return Output("json_schema", schema, param)


def regex(text: Any, param: str) -> Output:
    return Output("regex", _text(text, param), param)


def lark(text: Any, param: str) -> Output:
    return Output("lark", _text(text, param), param)


def thinking(effort: Any, budget: int | None, param: str = "reasoning_effort") -> Thinking:
    if effort is None:
        on = None if budget is None else budget > 0
        return Thinking(on, None, budget, "thinking_budget")
    if effort not in EFFORTS:
        raise InvalidRequest(f"{param} is {shown(effort)}, expected one of {', '.join(EFFORTS)}", param=param)
    return Thinking(effort != "none" and budget != 0, effort, budget, param)


def items(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} must be a list, got {shown(value)}", param=where)
    return cast("list[Any]", value)


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, got {shown(value)}", param=where)
    return cast("Mapping[str, Any]", value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string, got {shown(value)}", param=where)
    return value
