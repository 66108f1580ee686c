"""A tokenizer whose tokens are any pieces of text, for what must not depend on how text is cut into tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from ingle.text.tokenizer import Tokenizer


class Chunks:
    """Ids are handed out as pieces come; `special` texts have ids of their own."""

    strips_space = False

    def __init__(self, special: Sequence[str] = ()) -> None:
        self._pieces = [text.encode() for text in special]
        self._special = len(special)
        self.special_pattern = re.compile("|".join(map(re.escape, special))) if special else None

    def as_tokenizer(self) -> Tokenizer:
        return cast("Tokenizer", self)

    def token_id(self, text: str) -> int | None:
        known = self._pieces[: self._special]
        return known.index(text.encode()) if text.encode() in known else None

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def run_bytes(self, token_ids: Sequence[int], *, skip_special: bool) -> bytes:
        return b"".join(self._pieces[i] for i in token_ids if not (skip_special and self.is_special(i)))

    def is_special(self, token_id: int) -> bool:
        return token_id < self._special

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(self._pieces[i] for i in ids).decode()

    def tokens(self, data: bytes, cuts: Sequence[int]) -> list[int]:
        """`data` cut at its special texts, and at `cuts` (byte offsets) elsewhere."""
        out: list[int] = []
        at = 0
        spans = [
            m.span() for m in re.finditer(b"|".join(map(re.escape, self._pieces[: self._special])), data)
        ]
        for start, end in [*(spans if self._special else ()), (len(data), len(data))]:
            edges = sorted({at, start, *(c for c in cuts if at < c < start)})
            for first, last in zip(edges, edges[1:], strict=False):
                self._pieces.append(data[first:last])
                out.append(len(self._pieces) - 1)
            if end > start:
                out.append(self._pieces.index(data[start:end]))
            at = end
        return out
