"""Answer, reasoning and calls: told apart the same way however the text was cut into tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.errors import CheckpointError
from ingle.parsing.calls import Call, Tool
from ingle.parsing.channels import Answer, Channels, Reasoning, prompt_ends
from ingle.parsing.detect import markup_of
from support.chunks import Chunks

GEMMA = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>")
MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
QWEN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TOOLS = (
    Tool(
        "find",
        parameters={
            "type": "object",
            "properties": {
                "what": {"type": "string"},
                "count": {"type": "integer"},
                "near": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "name": {"type": "string"}},
                },
                "tags": {"type": "array", "items": {"type": "string"}},
                "exact": {"type": "boolean"},
                "either": {"type": ["string", "integer"]},
            },
        },
    ),
    Tool("stop"),
)


@dataclass(frozen=True)
class Style:
    """A model's marks: its special tokens, and what its template holds."""

    special: Sequence[str]
    template: str


STYLES = {
    "gemma4": Style(GEMMA, "<|channel><|tool_call>"),
    "qwen": Style(QWEN, "<think> <tool_call> tools"),
    "letters": Style((), "<think> <tool_call> tools"),
    "xml": Style((), "<think> <tool_call> <function= tools"),
    "llama": Style(("<|python_tag|>",), '"parameters" tools'),
    "bare": Style((), '"parameters" tools'),
    "pythonic": Style((), "tools [func_name"),
    "mistral": Style(MISTRAL, "[THINK] [TOOL_CALLS] [ARGS]"),
    "old mistral": Style(("[TOOL_CALLS]",), "[TOOL_CALLS]"),
}


@dataclass(frozen=True)
class Told:
    answer: str
    reasoning: str
    calls: tuple[tuple[str, object], ...]


def tell(
    style: str, text: str, cuts: Sequence[int] = (), *, inside: bool = False, tools: Sequence[Tool] = TOOLS
) -> Told:
    chunks = Chunks(STYLES[style].special)
    tokenizer = chunks.as_tokenizer()
    channels = Channels(tokenizer, markup_of(STYLES[style].template, tokenizer), tools, inside=inside)
    parts = [part for token in chunks.tokens(text.encode(), cuts) for part in channels.push(token)]
    parts += channels.flush()
    calls = [part for part in parts if isinstance(part, Call)]
    return Told(
        "".join(part.text for part in parts if isinstance(part, Answer)),
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        tuple((call.name, json.loads(call.arguments)) for call in calls),
    )


FIND = ("find", {"what": "a } b", "count": 5})
CASES: list[tuple[str, str, Told]] = [
    ("gemma4", "Hi.", Told("Hi.", "", ())),
    ("gemma4", "<|channel>thought\nhmm<channel|>Hi.", Told("Hi.", "hmm", ())),
    ("gemma4", "<|channel>thought\n<channel|>Hi.", Told("Hi.", "", ())),
    ("gemma4", "<|channel>other<channel|>Hi.", Told("Hi.", "other", ())),
    ("gemma4", '<|tool_call>call:find{what:<|"|>a } b<|"|>,count:5}<tool_call|>', Told("", "", (FIND,))),
    (
        "gemma4",
        'Now.<|tool_call>call:find{near:{x:-1.5e2,name:<|"|>{<|"|>},tags:[one,<|"|>two, {<|"|>,"three"]}<tool_call|>'
        "<|tool_call>call:stop{}<tool_call|>",
        Told("Now.", "", (("find", {"near": {"x": -150.0, "name": "{"}, "tags": ["one", "two, {", "three"]}), ("stop", {}))),
    ),
    ("gemma4", "<|tool_call>call:find{exact:true,either:7,what:7}<tool_call|>", Told("", "", (("find", {"exact": True, "either": 7, "what": "7"}),))),
    # Drifted, broken and truncated calls: text without marks, and no call.
    ("gemma4", '<|tool_call>find({"what": "x"})<tool_call|>', Told("", "", (("find", {"what": "x"}),))),
    ("gemma4", '<|tool_call>call:find{what:<|"|>x', Told("call:find{what:x", "", ())),
    ("gemma4", "<|tool_call>call:stop{}<tool_call|><|tool_call>call:fi", Told("call:fi", "", (("stop", {}),))),
    ("gemma4", "<|tool_call>call:stop{}<tool_call|><|tool_call>", Told("", "", (("stop", {}),))),
    ("gemma4", "<|tool_call>call:find{count:}<tool_call|>ok", Told("call:find{count:}ok", "", ())),
    ("gemma4", "<tool_call|>ok", Told("ok", "", ())),
    ("qwen", "<think>\nhm\n</think>\n\nHi.", Told("Hi.", "hm\n", ())),
    ("qwen", '<tool_call>\n{"name": "find", "arguments": {"what": "a } b", "count": 5}}\n</tool_call>', Told("", "", (FIND,))),
    ("letters", 'Ok.\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "stop"}</tool_call>', Told("Ok.\n", "", (("stop", {}), ("stop", {})))),
    ("letters", '<tool_call>{"name": "find", "arguments": {"what": "</tool_call>\\""}}</tool_call>', Told("", "", (("find", {"what": '</tool_call>"'}),))),
    ("letters", "a <tool_cal and <think", Told("a <tool_cal and <think", "", ())),
    ("letters", "<tool_call>{broken}</tool_call> on", Told("{broken} on", "", ())),
    ("letters", "<think>a</think><think>b</think>c", Told("c", "ab", ())),
    ("xml", "<tool_call>\n<function=find>\n<parameter=what>\n5\n</parameter>\n<parameter=count>\n5\n</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n</function>\n</tool_call>", Told("", "", (("find", {"what": "5", "count": 5, "tags": ["a"]}),))),
    ("xml", "<tool_call><function=find><parameter=what>a\n</tool_call>\nb</parameter><parameter=either>7</parameter><parameter=exact>True</parameter></function></tool_call>", Told("", "", (("find", {"what": "a\n</tool_call>\nb", "either": 7, "exact": True}),))),
    ("llama", '<|python_tag|>{"name": "stop", "parameters": {}}', Told("", "", (("stop", {}),))),
    ("bare", ' {"name": "find", "parameters": {"count": 5}}; {"name": "stop", "parameters": {}}', Told("", "", (("find", {"count": 5}), ("stop", {})))),
    ("bare", '{"answer": 5}', Told('{"answer": 5}', "", ())),
    ("bare", '{"name": "Ada"} is JSON', Told('{"name": "Ada"} is JSON', "", ())),
    ("bare", 'Use {"name": "stop"}.', Told('Use {"name": "stop"}.', "", ())),
    ("pythonic", "[find(what='it\\'s', near={'x': 1}, exact=True), stop()]", Told("", "", (("find", {"what": "it's", "near": {"x": 1}, "exact": True}), ("stop", {})))),
    ("pythonic", "[1] says so", Told("[1] says so", "", ())),
    ("pythonic", "[find(what=", Told("[find(what=", "", ())),
    ("mistral", '[THINK]hm[/THINK]Ok.[TOOL_CALLS]find[ARGS]{"count": 5}[TOOL_CALLS]stop[ARGS]{}', Told("Ok.", "hm", (("find", {"count": 5}), ("stop", {})))),
    ("old mistral", '[TOOL_CALLS] [{"name": "stop", "arguments": {}}, {"name": "stop", "arguments": {}}]', Told("", "", (("stop", {}), ("stop", {})))),
]  # fmt: skip


@pytest.mark.parametrize(("style", "text", "told"), CASES)
def test_parts_are_told_apart(style: str, text: str, told: Told) -> None:
    assert tell(style, text) == told


@given(st.sampled_from(CASES), st.lists(st.integers(1, 300), max_size=40), st.booleans())
def test_any_cut_gives_the_wholes_result(case: tuple[str, str, Told], cuts: list[int], every: bool) -> None:
    style, text, told = case
    assert tell(style, text, range(400) if every else cuts) == told


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "stop"}', "<", "a", "\n", '"', "{", "é😀", "}", "<tool", "call>"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(1, 120), max_size=30), st.booleans())
def test_anything_at_all_can_be_cut_anywhere(pieces: list[str], cuts: list[int], inside: bool) -> None:
    text = "".join(pieces)
    whole = tell("letters", text, inside=inside)
    assert tell("letters", text, cuts, inside=inside) == whole
    assert (
        "<think>" not in whole.reasoning or inside or whole.reasoning.count("<think>") < text.count("<think>")
    )


def in_runs(style: str, text: str, cuts: Sequence[int], runs: Sequence[int]) -> tuple[Told, int]:
    """Told apart run by run, and how many tokens were reasoning."""
    chunks = Chunks(STYLES[style].special)
    tokenizer = chunks.as_tokenizer()
    channels = Channels(tokenizer, markup_of(STYLES[style].template, tokenizer), TOOLS)
    tokens, parts = chunks.tokens(text.encode(), cuts), []
    edges = sorted({0, len(tokens), *(r for r in runs if r < len(tokens))})
    for first, last in zip(edges, edges[1:], strict=False):
        parts += channels.push_run(tokens[first:last])
    parts += channels.flush()
    calls = [part for part in parts if isinstance(part, Call)]
    told = Told(
        "".join(part.text for part in parts if isinstance(part, Answer)),
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        tuple((call.name, json.loads(call.arguments)) for call in calls),
    )
    return told, channels.reasoned


@given(
    st.sampled_from(CASES),
    st.lists(st.integers(1, 300), max_size=40),
    st.lists(st.integers(1, 60), max_size=9),
)
def test_tokens_may_be_taken_in_any_runs(
    case: tuple[str, str, Told], cuts: list[int], runs: list[int]
) -> None:
    style, text, told = case
    assert in_runs(style, text, cuts, runs)[0] == told
    assert in_runs(style, text, cuts, runs) == in_runs(style, text, cuts, range(400))


GEMMA_PIECES = st.sampled_from(
    [*GEMMA, "call:stop{}", "call:find{", "what:", "x", "}", "thought\n", "\n", "é😀"]
)


@given(st.lists(GEMMA_PIECES, max_size=12), st.lists(st.integers(1, 120), max_size=30))
def test_no_mark_of_gemma_is_ever_shown(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    whole = tell("gemma4", text)
    assert tell("gemma4", text, cuts) == whole
    assert not any(mark in whole.answer + whole.reasoning for mark in GEMMA)


def test_thousands_of_marks_at_once() -> None:
    text = "<|channel>a<channel|>b" * 3000
    assert in_runs("gemma4", text, (), ())[0] == Told("b" * 3000, "a" * 3000, ())


def test_without_tools_no_calls_are_looked_for() -> None:
    text = '<tool_call>{"name": "stop"}</tool_call>'
    assert tell("letters", text, tools=()) == Told(text, "", ())


@pytest.mark.parametrize(
    ("style", "prompt", "ends"),
    [
        ("gemma4", "<|channel>thought\n", "open"),
        ("gemma4", "<|channel>thought\n<channel|>", "closed"),
        ("gemma4", "say <channel|>\nmodel", "closed"),
        ("gemma4", "<|tool_response>", None),
        ("letters", "assistant\n<think>\n", "open"),
        ("letters", "assistant\n<think>\n\n</think>\n\n", "closed"),
        ("letters", "what does <think> mean?", None),
    ],
)
def test_reasoning_may_begin_in_the_prompt(style: str, prompt: str, ends: str | None) -> None:
    chunks = Chunks(STYLES[style].special)
    tokenizer = chunks.as_tokenizer()
    markup = markup_of(STYLES[style].template, tokenizer)
    assert prompt_ends(markup, tokenizer, chunks.tokens(prompt.encode(), ())) == ends


def test_the_answer_begins_inside_of_reasoning_that_the_prompt_opened() -> None:
    assert tell("letters", "hm</think>Hi.", inside=True) == Told("Hi.", "hm", ())
    assert tell("letters", "hm", inside=True) == Told("", "hm", ())
    assert tell("gemma4", "hm<channel|>Hi.", inside=True) == Told("Hi.", "hm", ())


def test_a_declared_mark_that_is_no_token_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"'<tool_call\|>', which is not one token"):
        markup_of("<|tool_call>", Chunks(["<|tool_call>"]).as_tokenizer())
