"""Mistral: `[TOOL_CALLS]` and a JSON list of calls, or `[TOOL_CALLS]name[ARGS]{...}` for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingle.parsing.calls import BrokenCall, Call, Tool, call
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Mark, Region, quoted
from ingle.parsing.tools.json_calls import calls_in, objects


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """Implements `ToolFormat`. `arguments` is the mark between name and arguments, of newer models."""

    open: Mark
    arguments: Mark | None

    @property
    def region(self) -> Region:
        return Region(self.open, None)

    def may_be(self, text: str) -> bool:
        return False

    def unfinished(self, body: str) -> bool:
        return False

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        if body.lstrip()[:1] in ("[", "{") and not body.lstrip().startswith(self.open.text):
            return calls_in(body)
        out: list[Call] = []
        for part in body.split(self.open.text):
            if not part.strip():
                continue
            name, between, arguments = part.partition("[ARGS]")
            if not between:
                name, between, arguments = part.partition("{")
                arguments = between + arguments
            name = name.partition("[CALL_ID]")[0].strip()
            out.append(call(name, arguments.strip()))
        if not out:
            raise BrokenCall("nothing")
        return out

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        if self.arguments is None:
            bounds = {} if many else {"maxItems": 1}
            schema = {"type": "array", "minItems": 1, **bounds}
            item = objects(tools, "arguments")
            definitions = item.pop("$defs", None)
            whole = {**schema, "items": item, **({"$defs": definitions} if definitions else {})}
            return source.rule("call", f"{self.open.lark} {source.json(whole)}")
        options: list[str] = []
        for number, tool in enumerate(tools):
            body = source.json(tool.schema())
            options.append(
                source.rule(
                    f"call{number}", f"{self.open.lark} {quoted(tool.name)} {self.arguments.lark} {body}"
                )
            )
        one = source.rule("call", " | ".join(options))
        return f"{one}+" if many else one
