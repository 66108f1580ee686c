"""Token ids to text while they arrive, never cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ingle.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """One per sequence. The pushed texts and the final flush join to `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        # The codec holds back a character's first bytes and replaces what can never become one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_space

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is under way."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def push_run(self, token_ids: Sequence[int]) -> str:
        """As `push` for each, joined; what many tokens cost together is little more than what one costs."""
        if self._at_start:
            return "".join([self.push(token_id) for token_id in token_ids])
        return self._decoder.decode(self._tokenizer.run_bytes(token_ids, skip_special=self._skip_special))

    def flush(self) -> str:
        """What an unfinished character at the end stands for."""
        return self._decoder.decode(b"", final=True)
