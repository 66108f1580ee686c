"""Grammars of calls and outputs: what they let through, what not, and what bad ones are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.contracts.grammar import Grammar
from ingle.errors import InvalidRequest
from ingle.parsing import grammar as grammar_module
from ingle.parsing.budget import ThinkingBudget
from ingle.parsing.calls import Call, Tool
from ingle.parsing.channels import Channels
from ingle.parsing.constraint import Output, ToolUse, check_tools, source_of
from ingle.parsing.detect import markup_of
from ingle.parsing.grammar import Grammars
from ingle.parsing.markup import Markup
from ingle.text.tokenizer import Tokenizer
from support.tiny_tokenizer import tiny_assets

GEMMA = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
TEMPLATES = {
    "gemma4": (GEMMA, "<|channel> <|tool_call>"),
    "qwen": (("<tool_call>", "</tool_call>", "<think>", "</think>"), "<think> <tool_call> tools"),
    "letters": ((), "<think> <tool_call> tools"),
    "xml": ((), "<tool_call> <function= tools"),
    "bare": ((), '"parameters" tools'),
    "pythonic": ((), "tools [func_name"),
    "mistral": (("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS] [ARGS]"),
    "old mistral": (("[TOOL_CALLS]",), "[TOOL_CALLS]"),
}
FIND = Tool(
    "find",
    parameters={
        "type": "object",
        "properties": {
            "what": {"type": "string"},
            "count": {"type": "integer"},
            "kind": {"enum": ["big", "small"]},
            "tree": {"$ref": "#/$defs/tree"},
        },
        "required": ["what"],
        "additionalProperties": False,
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/tree"}},
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
    },
)
STOP = Tool("stop", parameters={"type": "object", "properties": {}})
TOOLS = (FIND, STOP)


class Case:
    """A model of one style, and grammars on its tokenizer."""

    def __init__(self, style: str) -> None:
        special, template = TEMPLATES[style]
        assets = tiny_assets()
        if special:
            from tokenizers import Tokenizer as Backend

            assert assets.tokenizer_json is not None
            backend = Backend.from_str(assets.tokenizer_json.decode())
            backend.add_special_tokens(list(special))
            assets = replace(assets, tokenizer_json=backend.to_str().encode())
        self.tokenizer = Tokenizer.load(assets)
        self.markup = markup_of(template, self.tokenizer)
        self.grammars = Grammars(self.tokenizer, self.tokenizer.vocab_size)

    def grammar(
        self, use: ToolUse, output: Output | None = None, *, thinks: bool = False, inside: bool = False
    ) -> Grammar:
        ends = self.tokenizer.eos_token_ids
        source = source_of(self.markup, use, output, thinks=thinks, inside=inside, ends=ends)
        assert source is not None
        return self.compile(source)

    def compile(self, source: str) -> Grammar:
        return asyncio.run(self.grammars.compile(source, "tools"))

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """The text can be written, and end the answer."""
        state = grammar.start()
        for token in self.tokenizer.encode(text, special=True):
            mask = state.masks(())[0]
            if mask is not None and not mask[token]:
                return False
            state.advance(token)
        mask = state.masks(())[0]
        return mask is None or bool(mask[self.tokenizer.eos_token_ids[0]])

    def calls(self, text: str) -> list[tuple[str, Any]]:
        channels = Channels(self.tokenizer, self.markup, TOOLS)
        parts = [part for token in self.tokenizer.encode(text, special=True) for part in channels.push(token)]
        return [(c.name, json.loads(c.arguments)) for c in [*parts, *channels.flush()] if isinstance(c, Call)]


ALL = {"what": "x}", "count": 5, "kind": "big", "tree": {"leaf": True, "next": {"leaf": False}}}
GOOD = [
    ("gemma4", '<|tool_call>call:find{what:<|"|>x}<|"|>,count:5,kind:<|"|>big<|"|>,tree:{leaf:true,next:{leaf:false}}}<tool_call|>'),
    ("qwen", '<tool_call>\n{"name": "find", "arguments": ' + json.dumps(ALL) + "}\n</tool_call>"),
    ("letters", '<tool_call>\n{"name": "find", "arguments": ' + json.dumps(ALL) + "}\n</tool_call>"),
    ("xml", "<tool_call>\n<function=find>\n<parameter=what>\nx}\n</parameter>\n<parameter=count>\n5\n</parameter>\n<parameter=kind>\nbig\n</parameter>\n<parameter=tree>\n" + json.dumps(ALL["tree"]) + "\n</parameter>\n</function>\n</tool_call>"),
    ("bare", '{"name": "find", "parameters": ' + json.dumps(ALL) + "}"),
    ("pythonic", '[find(what="x}",count=5,kind="big",tree={"leaf":True,"next":{"leaf":False}})]'),
    ("mistral", "[TOOL_CALLS]find[ARGS]" + json.dumps(ALL)),
    ("old mistral", '[TOOL_CALLS][{"name": "find", "arguments": ' + json.dumps(ALL) + "}]"),
]  # fmt: skip
EDITS = [("5", '"5"'), ("5", "five"), ("find", "fond"), ("big", "huge"), ("what", "that"), ("leaf", "life")]


@pytest.mark.parametrize(("style", "text"), GOOD)
def test_a_forced_call_is_a_call_of_the_tools(style: str, text: str) -> None:
    case = Case(style)
    forced = case.grammar(ToolUse(TOOLS, "required"))
    assert case.accepts(forced, text)
    assert case.calls(text) == [("find", ALL)]
    assert not case.accepts(forced, "Hello.") and not case.accepts(forced, "")
    for old, new in EDITS:
        if style == "xml" and old == "big":
            continue  # texts are not told apart there
        assert not case.accepts(forced, text.replace(old, new)), f"{new} for {old}"
    other = case.grammar(ToolUse(TOOLS, "stop", named=True))
    assert not case.accepts(other, text)


@pytest.mark.parametrize(("style", "text"), GOOD)
def test_calls_in_a_row_are_allowed_unless_they_are_not(style: str, text: str) -> None:
    case = Case(style)
    joined = {
        "gemma4": text + text, "qwen": f"{text}\n{text}", "letters": f"{text}\n{text}", "xml": f"{text}\n{text}",
        "bare": f"{text}; {text}", "pythonic": f"{text[:-1]}, {text[1:]}", "mistral": text + text,
        "old mistral": text[:-1] + ", " + text.removeprefix("[TOOL_CALLS][")[:-1] + "]",
    }[style]  # fmt: skip
    assert case.calls(joined) == [("find", ALL)] * 2
    assert case.accepts(case.grammar(ToolUse(TOOLS, "required")), joined)
    assert not case.accepts(case.grammar(ToolUse(TOOLS, "required", parallel=False)), joined)


@pytest.mark.parametrize(("style", "text"), GOOD)
def test_auto_lets_a_strict_tool_be_called_by_its_schema_only(style: str, text: str) -> None:
    case = Case(style)
    auto = case.grammar(ToolUse((replace(FIND, strict=True), STOP), "auto"))
    assert case.accepts(auto, text) and case.accepts(auto, "Hello, you.") and case.accepts(auto, "")
    assert not case.accepts(auto, text.replace("find", "fond"))


def test_auto_with_loose_tools_allows_everything() -> None:
    case = Case("gemma4")
    assert source_of(case.markup, ToolUse(TOOLS), None, thinks=True, inside=False, ends=(257,)) is None


@pytest.mark.parametrize("style", ["gemma4", "qwen", "mistral"])
def test_none_forbids_the_opening_mark(style: str) -> None:
    case = Case(style)
    none = case.grammar(ToolUse(TOOLS, "none"))
    assert case.accepts(none, "Hello.") and not case.accepts(none, dict(GOOD)[style])


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("output", "good", "bad"),
    [
        (
            Output("json_schema", SCHEMA),
            ['{"a": 5}', '{\n  "a": 5\n}'],
            ['{"a": "x"}', "{}", "5", '{"a": 5} and'],
        ),
        (Output("json_object"), ["{}", '{"x": [1, "é"]}'], ["[]", "5", "{"]),
        (Output("regex", "(yes|no)/[0-9]{2}"), ["yes/12"], ["yes", "maybe/12", "yes/123"]),
        (Output("lark", 'start: "a" b\nb: /[0-9]+/'), ["a1", "a123"], ["a", "b1"]),
    ],
)
def test_outputs(output: Output, good: list[str], bad: list[str]) -> None:
    case = Case("gemma4")
    plain = case.grammar(ToolUse(), output)
    after = case.grammar(ToolUse(), output, thinks=True)
    within = case.grammar(ToolUse(), output, inside=True)
    for text in good:
        thought = 'thought\n{ "x" <channel|>' + text
        assert (
            case.accepts(plain, text)
            and case.accepts(after, text)
            and case.accepts(after, "<|channel>" + thought)
        )
        assert case.accepts(within, thought) and not case.accepts(within, text)
        assert not case.accepts(plain, "<|channel>" + thought)
    for text in bad:
        assert not case.accepts(plain, text) and not case.accepts(after, text)
        assert not case.accepts(within, "hm<channel|>" + text)


def test_an_output_or_a_call() -> None:
    case = Case("letters")
    either = case.grammar(ToolUse(TOOLS), Output("json_schema", SCHEMA), thinks=True)
    for text in ('{"a": 5}', dict(GOOD)["letters"], '<think>\nhm</think>\n\n{"a": 5}'):
        assert case.accepts(either, text), text
    assert not case.accepts(either, "Hello.")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (Output("json_schema", {"type": "foo"}), "Invalid type: foo"),
        (Output("json_schema", {"not": {}}), "not"),
        (Output("json_schema", {"$ref": "#/x"}), "does not exist"),
        (Output("json_schema", {"$ref": "http://127.0.0.1/x"}), "does not fetch"),
        (Output("json_schema", {"enum": []}), ""),
        (Output("json_schema", False), ""),
        (Output("regex", "(?=a)b"), "look-around"),
        (Output("regex", "("), ""),
        (Output("lark", "begin: x"), "start"),
        (Output("lark", "start: a"), "a"),
        (Output("lark", "start: @other"), "other"),
        (Output("lark", ""), ""),
        (Output("json_schema", {"type": "object", "properties": {f"{i:0300}": {} for i in range(1000)}}), "limit is 262144"),
    ],
)  # fmt: skip
def test_bad_grammars_are_refused(output: Output, message: str) -> None:
    with pytest.raises(InvalidRequest, match="tools") as caught:
        Case("bare").grammar(ToolUse(), output)
    assert message in caught.value.message and len(caught.value.message) < 600


def test_compiled_grammars_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MAX_KEPT", 2)
    case = Case("bare")
    first = case.grammar(ToolUse(), Output("regex", "a"))
    assert case.grammar(ToolUse(), Output("regex", "a")) is first
    for pattern in "bc":
        case.grammar(ToolUse(), Output("regex", pattern))
    assert case.grammar(ToolUse(), Output("regex", "a")) is not first


CHECKS = [
    (ToolUse((), "required"), "there are no tools"),
    (ToolUse(TOOLS, "other", named=True), "names 'other', the tools are find, stop"),
]


@pytest.mark.parametrize(("use", "message"), CHECKS)
def test_choices_need_their_tools(use: ToolUse, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_tools(use, Case("bare").markup, "m")


def test_models_without_calls_refuse_tools() -> None:
    with pytest.raises(InvalidRequest, match="'m' calls no tools"):
        check_tools(ToolUse(TOOLS), Markup(), "m")


def test_what_a_notation_cannot_enforce_is_refused_for_strict_tools() -> None:
    long = Tool("t", parameters={"properties": {"a": {"type": "string", "maxLength": 5}}}, strict=True)
    with pytest.raises(InvalidRequest, match="'maxLength'"):
        Case("gemma4").grammar(ToolUse((long,), "required"))
    Case("gemma4").grammar(ToolUse((replace(long, strict=False),), "required"))
    Case("bare").grammar(ToolUse((long,), "required"))  # JSON can


def follow(grammar: Grammar, tokens: Sequence[int], drafts: Sequence[int]) -> None:
    """Masks of drafts are those of the tokens themselves, and looking changes nothing."""
    state, again = grammar.start(), grammar.start()
    for token in tokens:
        state.advance(token)
        again.advance(token)
    masks = state.masks(drafts)
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(mask, again.masks(())[0])
        if number < len(drafts):
            again.advance(drafts[number])
    np.testing.assert_array_equal(state.masks(())[0], masks[0])
    if len(masks) <= len(drafts):
        last = masks[-1]
        assert last is not None and not last[drafts[len(masks) - 1]], "cut where a draft is not allowed"


TEXT = '<|channel>thought\nhm hm<channel|>{"a": 12345}'


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(0, 12), st.integers(0, 400), st.integers(1, 6))
def test_masks_of_drafts(cut: int, length: int, wrong: int, budget: int) -> None:
    case = Case("gemma4")
    inner = case.grammar(ToolUse(), Output("json_schema", SCHEMA), thinks=True)
    ids = case.tokenizer.encode(TEXT, special=True)
    drafts = [*ids[cut : cut + length], wrong % case.tokenizer.vocab_size, *ids[:2]]
    follow(inner, ids[:cut], drafts)
    opens, closes = (case.tokenizer.encode(mark, special=True)[0] for mark in GEMMA[:2])
    size = case.tokenizer.vocab_size
    limited = ThinkingBudget(inner, opens=opens, closes=closes, tokens=budget, inside=False, vocab_size=size)
    follow(limited, ids[: min(cut, budget)], drafts)


def test_a_budget_of_reasoning_ends_it() -> None:
    case = Case("gemma4")
    opens, closes = (case.tokenizer.encode(mark, special=True)[0] for mark in GEMMA[:2])
    for inside in (False, True):
        state = ThinkingBudget(
            None, opens=opens, closes=closes, tokens=3, inside=inside, vocab_size=case.tokenizer.vocab_size
        ).start()
        for token in [*([] if inside else [opens]), 1, 2, 3]:
            assert state.masks(()) == [None]
            state.advance(token)
        mask = state.masks((closes, 5))[0]
        assert mask is not None and np.flatnonzero(mask).tolist() == [closes]
        assert state.masks((closes, 5))[1:] == [None, None]
        state.advance(closes)
        assert state.masks(()) == [None] and not state.complete
