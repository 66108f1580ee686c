"""A limit on reasoning: when it is reached, nothing but the closing mark is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingle.contracts.grammar import Grammar, GrammarState, TokenMask


class ThinkingBudget:
    """Implements `contracts.grammar.Grammar`, perhaps around another one."""

    def __init__(
        self, inner: Grammar | None, *, opens: int, closes: int, tokens: int, inside: bool, vocab_size: int
    ) -> None:
        """`opens` and `closes`: ids of the marks. `inside`: reasoning has begun in the prompt."""
        self._inner, self._opens, self._closes = inner, opens, closes
        self._tokens, self._inside = tokens, inside
        self._only = np.zeros(vocab_size, np.bool_)
        self._only[closes] = True

    def start(self) -> BudgetState:
        inner = None if self._inner is None else self._inner.start()
        return BudgetState(self, inner, left=self._tokens if self._inside else None)

    def after(self, left: int | None, token: int) -> int | None:
        """Reasoning tokens left behind `token`; None outside of reasoning."""
        if token == self._opens:
            return self._tokens
        return None if left is None or token == self._closes else max(0, left - 1)

    def narrowed(self, left: int | None, mask: TokenMask | None) -> TokenMask | None:
        return self._only if left == 0 else mask


class BudgetState:
    """Implements `contracts.grammar.GrammarState`."""

    def __init__(self, budget: ThinkingBudget, inner: GrammarState | None, *, left: int | None) -> None:
        self._budget, self._inner, self._left = budget, inner, left

    @property
    def complete(self) -> bool:
        return self._inner is not None and self._inner.complete

    def masks(self, drafts: Sequence[int]) -> list[TokenMask | None]:
        inner = [None] * (len(drafts) + 1) if self._inner is None else self._inner.masks(drafts)
        left = self._left
        out = [self._budget.narrowed(left, inner[0])]
        for draft, mask in zip(drafts, inner[1:], strict=False):
            left = self._budget.after(left, draft)
            out.append(self._budget.narrowed(left, mask))
        return out

    def advance(self, token: int) -> None:
        self._left = self._budget.after(self._left, token)
        if self._inner is not None:
            self._inner.advance(token)
