"""Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,n:5}<tool_call|>`, one region for each call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ingle.parsing.calls import BrokenCall, Call, Tool, call, named, parsed
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Mark, Region, quoted
from ingle.parsing.notation import Notation, Reader, ValueRules

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*(?:<?\|?tool_call\|?>?)?\s*(?:call:)?\s*([A-Za-z_][\w.\-]*)\s*")


@dataclass(frozen=True, slots=True)
class Gemma4Calls:
    """Implements `ToolFormat`."""

    region: Region
    quote: Mark

    @property
    def _notation(self) -> Notation:
        return Notation(
            quotes=(_QUOTE, '"'),
            escaped=False,
            constants={"true": True, "false": False, "null": None},
            quote_rule=self.quote.lark,
            text_rule=r"/[^<\x00-\x08]([^<\x00-\x08]|<[^|])*/",
            quoted_keys=False,
        )

    def may_be(self, text: str) -> bool:
        return False

    def unfinished(self, body: str) -> bool:
        return body.count(_QUOTE) % 2 == 1

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        found = _NAME.match(body)
        if found is None:
            raise BrokenCall("no name")
        name = found[1]
        rest = body[found.end() :]
        if rest.startswith("("):  # a drift towards JSON in parentheses
            inner = rest.strip()[1:].removesuffix(")")
            return [call(name, parsed(inner or "{}"))]
        tool = named(tools, name)
        reader = Reader(rest, self._notation)
        reader.expect("{")
        arguments = reader.fields("}", ":", None if tool is None else tool.parameters)
        reader.blank()
        if reader.at != len(rest):
            raise BrokenCall(f"more behind the call of {name}")
        return [call(name, arguments)]

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        options: list[str] = []
        assert self.region.close is not None
        for number, tool in enumerate(tools):
            rules = ValueRules(source, self._notation, f"tool{number}")
            inside = rules.members(tool.parameters, tool.parameters, ":", strict=tool.strict)
            options.append(
                source.rule(
                    f"call{number}",
                    f"{self.region.open.lark} {quoted('call:' + tool.name + '{')} {inside} "
                    f"{quoted('}')} {self.region.close.lark}",
                )
            )
        one = source.rule("call", " | ".join(options))
        return f"{one}+" if many else one
