"""Llama's pythonic calls: the answer is `[first(a=1, b="x"), second()]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ingle.parsing.calls import BrokenCall, Call, Tool, call, named
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Mark, Region, quoted
from ingle.parsing.notation import Notation, Reader, ValueRules

_BEGIN = re.compile(r"\s*(?:\[\s*(?:[A-Za-z_][\w.]*(?:\(.*)?)?)?\Z", re.DOTALL)
_NOTATION = Notation(
    quotes=('"', "'"),
    escaped=True,
    constants={
        "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
    },
    quote_rule='"\\""',
    text_rule=r'/([^"\\\x00-\x1F]|\\["\\nrt])+/',
    quoted_keys=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PythonicCalls:
    """Implements `ToolFormat`."""

    tag: Mark | None = None

    @property
    def region(self) -> Region | None:
        return None if self.tag is None else Region(self.tag, None)

    def may_be(self, text: str) -> bool:
        return _BEGIN.match(text) is not None

    def unfinished(self, body: str) -> bool:
        return False

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        reader = Reader(body.strip(), _NOTATION)
        out: list[Call] = []
        reader.expect("[")
        while not reader.takes("]"):
            if out:
                reader.expect(",")
            name = reader.word(r"[A-Za-z_][\w.]*")
            reader.expect("(")
            tool = named(tools, name)
            out.append(call(name, reader.fields(")", "=", None if tool is None else tool.parameters)))
        if not out or reader.at != len(reader.text):
            raise BrokenCall("no list of calls")
        return out

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        options: list[str] = []
        for number, tool in enumerate(tools):
            rules = ValueRules(source, _NOTATION, f"tool{number}")
            inside = rules.members(tool.parameters, tool.parameters, "=", strict=tool.strict)
            options.append(source.rule(f"call{number}", f'{quoted(tool.name + "(")} {inside} ")"'))
        one = source.rule("call", " | ".join(options))
        return f'"[" {one} (", " {one})* "]"' if many else f'"[" {one} "]"'
