"""How a model marks what is not part of its answer: reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ingle.errors import CheckpointError
from ingle.parsing.calls import Call, Tool
from ingle.parsing.grammar import LarkSource
from ingle.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Mark:
    """A control text. `token_id`: of the one token that it is; None for models that write it in letters."""

    text: str
    token_id: int | None = None

    @property
    def lark(self) -> str:
        """Exactly this mark, in a Lark rule."""
        return quoted(self.text) if self.token_id is None else f"<[{self.token_id}]>"


def mark(text: str, tokenizer: Tokenizer, *, token: bool = False) -> Mark:
    """`text` as this tokenizer has it.

    Raises:
        CheckpointError: it must be one `token`, and is not.
    """
    found = tokenizer.token_id(text)
    if found is None and token:
        raise CheckpointError(f"the chat template uses {text!r}, which is not one token of the tokenizer")
    return Mark(text, found)


def quoted(text: str) -> str:
    """A Lark string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class Region:
    """What stands between two marks. Without `close` it ends with the answer."""

    open: Mark
    close: Mark | None
    label: str = ""  # what its content begins with, beside the content


class ToolFormat(Protocol):
    """How calls are written. Pure: what it answers depends on its arguments alone."""

    @property
    def region(self) -> Region | None:
        """Where calls stand; None: an answer is calls, or is not, from its first character on."""
        ...

    def may_be(self, text: str) -> bool:
        """Without a region: an answer that begins like this may be calls."""
        ...

    def unfinished(self, body: str) -> bool:
        """The closing mark behind `body` is part of a string."""
        ...

    def parse(self, body: str, tools: Sequence[Tool]) -> list[Call]:
        """The calls in a region.

        Raises:
            BrokenCall: there is something else in it.
        """
        ...

    def rules(self, source: LarkSource, tools: Sequence[Tool], *, many: bool) -> str:
        """A Lark expression: calls of these tools, with their marks; one, or with `many` one or more."""
        ...


@dataclass(frozen=True, slots=True)
class Markup:
    """Of one model; None where it has no such thing."""

    reasoning: Region | None = None
    tools: ToolFormat | None = None
