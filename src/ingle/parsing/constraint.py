"""What an answer must look like, as one grammar: reasoning, then calls, an output, or text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ingle.errors import InvalidRequest
from ingle.parsing.calls import Tool, named
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import Markup, Region, ToolFormat


@dataclass(frozen=True, slots=True)
class Output:
    """A structured output. `value`: a JSON schema, a regular expression or a Lark grammar."""

    kind: Literal["json_schema", "json_object", "regex", "lark"]
    value: Any = None
    param: str = "response_format"  # the client's name for it


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`choice`: "auto", "none", "required", or the name of the one tool that must be called."""

    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    named: bool = False  # `choice` is a name
    parallel: bool = True

    @property
    def forced(self) -> bool:
        return self.named or self.choice == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Those that may be called."""
        if self.named:
            return tuple(tool for tool in self.tools if tool.name == self.choice)
        return () if self.choice == "none" else self.tools


def check_tools(use: ToolUse, markup: Markup, model: str) -> None:
    """Raises InvalidRequest: a choice without its tool, or tools for a model without calls."""
    if use.forced and not use.tools:
        raise InvalidRequest(f"tool_choice is {use.choice!r}, and there are no tools", param="tool_choice")
    if use.named and named(use.tools, use.choice) is None:
        known = ", ".join(tool.name for tool in use.tools)
        raise InvalidRequest(
            f"tool_choice names {use.choice[:64]!r}, the tools are {known}", param="tool_choice"
        )
    if use.tools and use.choice != "none" and markup.tools is None:
        raise InvalidRequest(
            f"model {model!r} calls no tools: its chat template has no form for them",
            param="tools",
            code="unsupported_value",
        )


def source_of(
    markup: Markup,
    use: ToolUse,
    output: Output | None,
    *,
    thinks: bool,
    inside: bool,
    ends: Sequence[int],
) -> str | None:
    """The source of the grammar; None where everything is allowed.

    `thinks`: reasoning may come first; `inside`: the prompt has opened it. `ends`: ids that end a turn.

    Raises:
        InvalidRequest: a schema cannot be enforced.
    """
    source = LarkSource()
    body = _body(source, markup, use, output, ends)
    if body is None:
        return None
    before = _reasoning(source, markup.reasoning, inside=inside, ends=ends) if thinks or inside else ""
    source.rule("start", f"{before} {body}".strip())
    return source.text()


def _body(
    source: LarkSource, markup: Markup, use: ToolUse, output: Output | None, ends: Sequence[int]
) -> str | None:
    form = markup.tools
    structured = None if output is None else _output(source, output)
    if form is None or not use.tools:
        return structured
    opening = None if form.region is None else form.region.open.token_id
    if use.choice == "none" and not use.named:
        if structured is not None or opening is None:
            return structured
        return source.rule("text", f"<[^{opening}]>*")
    if use.forced:
        return source.rule("calls", form.rules(source, use.offered, many=use.parallel))
    if structured is None and use.parallel and not any(tool.strict for tool in use.tools):
        return None
    calls = source.rule("calls", form.rules(source, use.offered, many=use.parallel))
    if structured is not None:
        return source.rule("body", f"{calls} | {structured}")
    return source.rule("body", _text_or(source, form, calls, opening, ends))


def _text_or(
    source: LarkSource, form: ToolFormat, calls: str, opening: int | None, ends: Sequence[int]
) -> str:
    """Text, perhaps with calls behind it; marks in letters can only be told at the beginning."""
    if opening is not None:
        banned = ",".join(map(str, [opening, *ends]))
        return f"<[^{banned}]>* {calls}?"
    first = "{\\[" if form.region is None else form.region.open.text[0]
    text = source.rule("TEXT", f"/[^{first}](?s:.*)/")
    return f'{calls} | {text} | ""'


def _reasoning(source: LarkSource, region: Region | None, *, inside: bool, ends: Sequence[int]) -> str:
    if region is None or region.close is None:
        return ""
    lines = source.rule("LINES", "/\\n{1,2}/")
    close = region.close
    if close.token_id is not None:
        banned = ",".join(map(str, [close.token_id, *ends]))
        thought = source.rule("thought", f"<[^{banned}]>* {close.lark} {lines}?")
    else:
        source.rule("THOUGHT", "/(?s:.*)/")
        source.rule("thought_end[lazy]", f"THOUGHT {close.lark}")
        thought = source.rule("thought", f"thought_end {lines}?")
    return thought if inside else f"({region.open.lark} {thought})?"


def _output(source: LarkSource, output: Output) -> str:
    if output.kind == "json_schema":
        return source.json(output.value)
    if output.kind == "json_object":
        return source.json({"type": "object"})
    if output.kind == "regex":
        return source.regex(output.value)
    return source.lark(output.value)
