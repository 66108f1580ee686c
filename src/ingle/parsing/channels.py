"""Tell answer, reasoning and tool calls apart while tokens arrive.

Marks that are tokens are found by id, so text that only looks like one stays text; models that write their
marks in letters are read by text. What comes out is a function of the tokens alone: joined, it is the same
however they were cut into steps. A call comes out whole, once its closing mark is there and it could be read;
what could not be read comes out as text, without its marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ingle.parsing.calls import BrokenCall, Call, Tool
from ingle.parsing.markup import Mark, Markup, Region, ToolFormat
from ingle.text.detokenizer import IncrementalDetokenizer
from ingle.text.tokenizer import Tokenizer

MAX_CALL_CHARS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Text of the answer: the decoded characters [start, start + len(text))."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


Part: TypeAlias = Answer | Reasoning | Call


class Channels:
    """One per sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        markup: Markup,
        tools: Sequence[Tool] = (),
        *,
        inside: bool = False,
    ) -> None:
        """`tools`: none of them, no calls are looked for. `inside`: the prompt has opened reasoning."""
        self._tokenizer, self._tools = tokenizer, tools
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._format: ToolFormat | None = markup.tools if tools else None
        self._reasoning = markup.reasoning
        regions = [r for r in (markup.reasoning, self._format.region if self._format else None) if r]
        marks = [m for r in regions for m in (r.open, r.close) if m is not None]
        self._opens = {r.open.text: r for r in regions}
        self._by_id = {m.token_id: m for m in marks if m.token_id is not None}
        self._in_letters = tuple(m.text for m in marks if m.token_id is None)
        self._region: Region | None = None
        self._held = ""  # decoded and not yet told apart
        self._at = 0  # decoded characters before `_held`
        self._first = self._format is not None  # the answer may still turn out to be calls, mark or no mark
        self._trim = False  # line breaks at the beginning of what follows are not part of it
        self.decoded = 0
        self.reasoned = 0  # tokens of reasoning, its opening mark among them
        if inside and markup.reasoning is not None:
            self._enter(markup.reasoning)

    @property
    def settled(self) -> int:
        """Decoded characters that have been told apart."""
        return self._at

    @property
    def reasons(self) -> bool:
        return self._region is not None and self._region is self._reasoning

    def push_run(self, token_ids: Sequence[int]) -> list[Part]:
        """As `push` for each: what is between two marks is decoded and told apart at once."""
        out: list[Part] = []
        start = 0
        while start < len(token_ids):
            end = start
            if not (self._inside_call or self._in_letters or self._first):
                marks = (i for i in range(start, len(token_ids)) if token_ids[i] in self._by_id)
                end = next(marks, len(token_ids))
                out += self._between(token_ids[start:end])
            if end < len(token_ids):
                out += self.push(token_ids[end])
            start = end + 1
        return out

    def _between(self, token_ids: Sequence[int]) -> list[Part]:
        self.reasoned += len(token_ids) * self.reasons
        return self._take(self._detokenizer.push_run(token_ids)) if token_ids else []

    def push(self, token_id: int) -> list[Part]:
        out = self._push(token_id)
        self.reasoned += self.reasons
        return out

    def _push(self, token_id: int) -> list[Part]:
        found = self._by_id.get(token_id)
        if found is not None:
            return [*self._take(self._detokenizer.flush()), *self._meet(found)]
        text = self._detokenizer.push(token_id)
        if self._inside_call and self._tokenizer.is_special(token_id):
            text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return self._take(text)

    def flush(self) -> list[Part]:
        """What was held back, once nothing follows."""
        out = self._take(self._detokenizer.flush())
        if self._inside_call:
            return [*out, *self._call(self._held)]
        if self._first and self._held.strip():
            return [*out, *self._call(self._held)]
        return [*out, *self._show(len(self._held))]

    @property
    def _inside_call(self) -> bool:
        return self._region is not None and self._region is not self._reasoning

    def _enter(self, region: Region) -> None:
        self._region, self._trim, self._first = region, True, False

    def _take(self, text: str) -> list[Part]:
        self.decoded += len(text)
        self._held += text
        out: list[Part] = []
        while self._held:
            before = len(self._held), self._region
            found = self._next_mark()
            if found is not None:
                at, mark = found
                out += self._meet(Mark(mark), at)
            elif not self._inside_call and not self._waits():
                out += self._show(len(self._held) - self._partial())
            if (len(self._held), self._region) == before:
                break
        if self._inside_call and len(self._held) > MAX_CALL_CHARS:
            out += self._call(self._held)
        return out

    def _next_mark(self) -> tuple[int, str] | None:
        """The first mark in letters that counts here: the closing one of a region, or an opening one."""
        if not self._in_letters:
            return None
        if self._region is None:
            wanted = [text for text in self._in_letters if text in self._opens or self._stray(text)]
        else:
            close = self._region.close
            wanted = [] if close is None or close.token_id is not None else [close.text]
        found = [(at, text) for text in wanted if (at := self._held.find(text)) >= 0]
        if not found:
            return None
        at, text = min(found)
        if self._inside_call:
            assert self._format is not None
            while self._format.unfinished(self._held[:at]):
                at = self._held.find(text, at + len(text))
                if at < 0:
                    return None
        return at, text

    def _stray(self, text: str) -> bool:
        """A closing mark without an opening one."""
        return (
            self._reasoning is not None
            and self._reasoning.close is not None
            and (text == self._reasoning.close.text)
        )

    def _partial(self) -> int:
        """Length of the longest end of what is held that a mark in letters may begin with."""
        longest = max((len(text) for text in self._in_letters), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(text.startswith(tail) for text in self._in_letters):
                return size
        label = self._region.label if self._region is not None and self._trim else ""
        return len(self._held) if label and label.startswith(self._held) and self._held != label else 0

    def _waits(self) -> bool:
        """The answer may be calls without a mark: nothing of it is shown before that is decided."""
        if not self._first or self._region is not None or self._format is None:
            return False
        if self._format.may_be(self._held):
            return True
        self._first = not self._held.strip() and self._format.may_be("")
        return self._first

    def _meet(self, mark: Mark, at: int | None = None) -> list[Part]:
        """A mark, behind `at` characters of what is held."""
        end = len(self._held) if at is None else at
        width = 0 if at is None else len(mark.text)
        if self._inside_call:
            closes = self._region is not None and self._region.close is not None
            if not closes and mark.text in self._opens and self._opens[mark.text] is self._region:
                self._held += mark.text  # formats without a closing mark separate calls by the opening one
                self.decoded += len(mark.text)
                return []
            out = self._call(self._held[:end])
        else:
            out = self._show(end)
        self._held = self._held[width:]
        self._at += width
        opened = self._opens.get(mark.text)
        self._region, self._trim = None, True
        if opened is not None:
            self._enter(opened)
        return out

    def _show(self, count: int) -> list[Part]:
        """The first `count` held characters, as answer or reasoning."""
        text, start = self._held[:count], self._at
        self._held, self._at = self._held[count:], self._at + count
        if self._trim and text:
            if self._region is not None and self._region.label:
                kept = text.removeprefix(self._region.label)
            else:
                kept = text.lstrip("\n")
            self._trim = not kept and not (self._region is not None and self._region.label)
            start += len(text) - len(kept)
            text = kept
        if not text:
            return []
        if self._region is not None:
            return [Reasoning(text)]
        if text.strip():
            self._first = False
        return [Answer(start, text)]

    def _call(self, body: str) -> list[Part]:
        """The calls that `body`, the beginning of what is held, is; or its text."""
        assert self._format is not None
        region, self._region = self._region, None
        self._first = False
        self._trim = self._trim and region is None
        try:
            calls = self._format.parse(body, self._tools)
        except BrokenCall:
            return self._plain(body)
        self._held, self._at = self._held[len(body) :], self._at + len(body)
        return list(calls)

    def _plain(self, body: str) -> list[Part]:
        """`body`, the beginning of what is held, as text without control texts."""
        out: list[Part] = []
        pattern = self._tokenizer.special_pattern
        at = 0
        for found in pattern.finditer(body) if pattern is not None else ():
            out += self._show(found.start() - at)
            self._held, self._at = self._held[len(found[0]) :], self._at + len(found[0])
            at = found.end()
        return [*out, *self._show(len(body) - at)]


PromptEnd: TypeAlias = Literal["open", "closed"]


def prompt_ends(markup: Markup, tokenizer: Tokenizer, prompt: Sequence[int]) -> PromptEnd | None:
    """Whether the prompt ends in reasoning that its template opened, or behind reasoning that it closed: the
    model is then not meant to reason."""
    region = markup.reasoning
    if region is None or region.close is None:
        return None
    tail = list(prompt[-16:])
    ids = (region.open.token_id, region.close.token_id)
    meanings: tuple[tuple[Mark, PromptEnd], ...] = ((region.open, "open"), (region.close, "closed"))
    for mark, meaning in meanings:
        if mark.token_id is None:
            text = tokenizer.decode(tail, skip_special=False)
            ends = text.rstrip().endswith(mark.text)
        else:
            marks = [token for token in tail if tokenizer.is_special(token) or token in ids]
            ends = bool(marks) and marks[-1] == mark.token_id
        if ends:
            return meaning
    return None
