"""Real grammars over any vocabulary: token i is a short text of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import cast

from ingle.contracts.grammar import Grammar
from ingle.parsing.budget import ThinkingBudget
from ingle.parsing.constraint import Output, ToolUse, source_of
from ingle.parsing.grammar import Grammars
from ingle.parsing.markup import Markup
from ingle.text.tokenizer import Tokenizer

END = 2


class Letters:
    """Ids 0 to 2 are special; the others are one letter, or two."""

    eos_token_ids = (END,)
    bos_token_id = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        letters = "abcdefghijklmnopqrstuvwxyz"
        texts = [*letters, *(a + b for a in letters for b in letters)]
        self._texts = ["<0>", "<1>", "<end>", *texts][:vocab_size]

    def token_bytes(self, token_id: int) -> bytes:
        return self._texts[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        return token_id <= END

    def encode(self, text: str, *, special: bool) -> Sequence[int]:
        return [self._texts.index(letter) for letter in text]


@cache
def grammars(vocab_size: int) -> tuple[Grammar | None, ...]:
    """None, one that never ends, one that ends by itself, and one behind a limited stretch of reasoning."""
    compiler = Grammars(cast("Tokenizer", Letters(vocab_size)), vocab_size)

    def compiled(pattern: str) -> Grammar:
        source = source_of(Markup(), ToolUse(), Output("regex", pattern), thinks=False, inside=False, ends=())
        assert source is not None
        return asyncio.run(compiler.compile(source, "regex"))

    endless = compiled("([a-m]{1,3}[n-z]{1,2})*[0-9]")
    budget = ThinkingBudget(endless, opens=3, closes=20, tokens=4, inside=False, vocab_size=vocab_size)
    return None, endless, compiled("([a-k]{2,4}[l-z]){4,7}"), budget
