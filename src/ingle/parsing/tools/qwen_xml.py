"""Qwen's newer form, a line for each tag.

`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`:
nothing in it tells a text from a number, so the tool's schema decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingle.parsing.calls import BrokenCall, Call, Tool, call, kinds, named, parsed
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Region, quoted
from ingle.parsing.tools.json_calls import calls_in

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class QwenXml:
    """Implements `ToolFormat`."""

    region: Region

    def may_be(self, text: str) -> bool:
        return False

    def unfinished(self, body: str) -> bool:
        return "<parameter=" in body and "</parameter>" not in body[body.rfind("<parameter=") :]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        if body.lstrip().startswith("{"):
            return calls_in(body)  # models of the family know the older form too
        out: list[Call] = []
        at = 0
        while at < len(body) and body[at:].strip():
            found = _FUNCTION.match(body, at)
            if found is None:
                raise BrokenCall("no function")
            name = found[1].strip()
            out.append(call(name, _arguments(found[2], named(tools, name))))
            at = found.end()
        if not out:
            raise BrokenCall("nothing")
        return out

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        assert self.region.close is not None
        options: list[str] = []
        end = quoted("\n</parameter>\n")
        source.rule("ANYTHING", "/(?s:.*)/")
        text = "parameter_text"  # as short as it can be
        source.rule(f"{text}[lazy]", f"ANYTHING {end}")
        for number, tool in enumerate(tools):
            required = tool.required()
            parts: list[str] = []
            for key, schema in tool.properties().items():
                wanted = kinds(schema, tool.parameters)
                value = text
                if wanted and "string" not in wanted:
                    value = f"{source.json(_with_definitions(schema, tool.parameters))} {end}"
                part = f"{quoted(f'<parameter={key}>' + chr(10))} {value}"
                parts.append(part if key in required else f"({part})?")
            head = quoted(f"\n<function={tool.name}>\n")
            options.append(
                source.rule(f"call{number}", f"{head} {' '.join(parts)} {quoted('</function>' + chr(10))}")
            )
        one = source.rule("call", f"{self.region.open.lark} ({' | '.join(options)}) {self.region.close.lark}")
        return f'{one} ("\\n" {one})*' if many else one


def _arguments(body: str, tool: Tool | None) -> dict[str, Any]:
    schemas = {} if tool is None else tool.properties()
    root = None if tool is None else tool.parameters
    out: dict[str, Any] = {}
    at = 0
    while at < len(body) and body[at:].strip():
        found = _PARAMETER.match(body, at)
        if found is None:
            raise BrokenCall("no parameter")
        key = found[1].strip()
        out[key] = _value(found[2].removeprefix("\n").removesuffix("\n"), schemas.get(key), root)
        at = found.end()
    return out


def _value(text: str, schema: Any, root: Any) -> Any:
    wanted = kinds(schema, root)
    if wanted == frozenset({"string"}):
        return text
    try:
        value = parsed(text)
    except BrokenCall:
        if text.strip() in ("True", "False", "None"):  # models slip into Python
            return {"True": True, "False": False, "None": None}[text.strip()]
        return text
    if "string" in wanted and not _fits(value, wanted - {"string"}):
        return text
    return value


def _fits(value: Any, wanted: frozenset[str]) -> bool:
    return bool(kinds({"const": value}) & (wanted | ({"integer"} if "number" in wanted else set())))


def _with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    if isinstance(schema, Mapping) and "$ref" in json.dumps(schema):
        return {**schema, **{name: root[name] for name in ("$defs", "definitions") if name in root}}
    return schema
