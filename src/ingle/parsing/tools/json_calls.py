"""Calls as JSON objects.

Hermes and Qwen write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; Llama 3's answer itself is
`{"name": ..., "parameters": {...}}`, perhaps behind `<|python_tag|>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ingle.parsing.calls import BrokenCall, Call, Tool, call, values
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Mark, Region

_BLANK = re.compile(r"\s+")
_FIRST_KEYS = ('{"name"', '{"type"')


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """Hermes and Qwen. Implements `ToolFormat`."""

    region: Region

    def may_be(self, text: str) -> bool:
        return False

    def unfinished(self, body: str) -> bool:
        return inside_string(body)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        return calls_in(body)

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        assert self.region.close is not None
        body = source.json(objects(tools, "arguments"))
        one = source.rule("call", f'{self.region.open.lark} "\\n" {body} "\\n" {self.region.close.lark}')
        return f'{one} ("\\n" {one})*' if many else one


@dataclass(frozen=True, slots=True)
class BareJson:
    """Llama 3. Implements `ToolFormat`."""

    tag: Mark | None  # `<|python_tag|>`, where the tokenizer has it

    @property
    def region(self) -> Region | None:
        return None if self.tag is None else Region(self.tag, None)

    def may_be(self, text: str) -> bool:
        begin = _BLANK.sub("", text[:256])
        return any(begin.startswith(key) or key.startswith(begin) for key in _FIRST_KEYS)

    def unfinished(self, body: str) -> bool:
        return False

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        return calls_in(body)

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        one = source.json(objects(tools, "parameters"))
        return f'{one} ("; " {one})*' if many else one


def inside_string(body: str) -> bool:
    """A JSON text that ends inside a string."""
    return re.sub(r"\\.", "", body, flags=re.DOTALL).count('"') % 2 == 1


def calls_in(body: str) -> list[Call]:
    """Raises BrokenCall: the body holds something other than calls."""
    found: list[Call] = []
    for value in values(body):
        items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
        for item in items:
            if not isinstance(item, Mapping):
                raise BrokenCall("no object")
            found.append(_call(cast("Mapping[str, Any]", item)))
    if not found:
        raise BrokenCall("nothing")
    return found


def _call(fields: Mapping[str, Any]) -> Call:
    inner: Any = fields.get("function")
    if isinstance(inner, Mapping):
        fields = cast("Mapping[str, Any]", inner)
    name = fields.get("name", inner)
    arguments = fields.get("arguments", fields.get("parameters"))
    return call(name, arguments)


def objects(tools: Sequence[Tool], field: str) -> dict[str, Any]:
    """The schema of a call of one of the tools."""
    options: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, field: rooted(tool.schema(), f"tool{number}")},
            "required": ["name", field],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
    ]
    definitions = {
        f"tool{number}": tool.schema() for number, tool in enumerate(tools) if "$ref" in str(tool.parameters)
    }
    if not definitions:
        return options[0] if len(options) == 1 else {"anyOf": options}
    return {"anyOf": options, "$defs": {name: moved(s, f"#/$defs/{name}") for name, s in definitions.items()}}


def rooted(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """A schema with references of its own is put where they can be followed."""
    return {"$ref": f"#/$defs/{name}"} if "$ref" in str(schema) else schema


def moved(value: Any, root: str) -> Any:
    """`value` with its local references starting at `root`."""
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, inner in cast("Mapping[str, Any]", value).items():
            if key == "$ref" and isinstance(inner, str) and inner.startswith("#"):
                out[key] = root + inner[1:]
            else:
                out[key] = moved(inner, root)
        return out
    if isinstance(value, list):
        return [moved(item, root) for item in cast("list[Any]", value)]
    return value
