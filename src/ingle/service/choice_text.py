"""Tokens of one choice to text: whole characters, stop strings cut, log-probabilities in line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingle.contracts.request import TokenLogprobs
from ingle.text.detokenizer import IncrementalDetokenizer
from ingle.text.stop_strings import StopMatcher
from ingle.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenText:
    """One reported token. `data` are its bytes that are part of the shown text."""

    token_id: int
    data: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...]  # (token id, bytes, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown, and the tokens that it finishes."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()


class ChoiceText:
    """Joined pieces are the full decoding up to the stop string, if one matched (`stopped`).

    The bytes of all reported tokens join to the shown text: a token that a stop string cuts is
    reported with the bytes before the cut, tokens behind it are not reported.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self._decoded = 0  # characters decoded so far
        self._shown = 0
        self._unreported: list[tuple[TokenText, int]] = []  # token, characters decoded after it
        self.stopped: str | None = None

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> Piece:
        decoded = self._detokenizer.push(token_id)
        before, self._decoded = self._decoded, self._decoded + len(decoded)
        if logprobs is not None and not self._tokenizer.is_special(token_id):
            # A token inside a character has no text yet: its bytes count with the one that ends it.
            end = self._decoded if decoded else before + 1
            self._unreported.append((self._token_text(token_id, logprobs), end))
        shown, self.stopped = self._matcher.push(decoded)
        self._shown += len(shown)
        if self.stopped is not None:
            return Piece(shown, self._cut(shown))
        return Piece(shown, self._released())

    def flush(self) -> Piece:
        """What was held back, once nothing follows."""
        if self.stopped is not None:
            return Piece()
        tail, self.stopped = self._matcher.push(self._detokenizer.flush())
        text = tail if self.stopped is not None else tail + self._matcher.flush()
        self._shown += len(text)
        tokens = tuple(token for token, _ in self._unreported)
        self._unreported.clear()
        return Piece(text, tokens)

    def _token_text(self, token_id: int, logprobs: TokenLogprobs) -> TokenText:
        top = tuple((i, self._tokenizer.token_bytes(i), p) for i, p in logprobs.top)
        return TokenText(token_id, self._tokenizer.token_bytes(token_id), logprobs.logprob, top)

    def _released(self) -> tuple[TokenText, ...]:
        count = 0
        for _, end in self._unreported:
            if end > self._shown:
                break
            count += 1
        out = tuple(token for token, _ in self._unreported[:count])
        del self._unreported[:count]
        return out

    def _cut(self, shown: str) -> tuple[TokenText, ...]:
        """Report what the last shown text holds of the tokens that were held back."""
        out = self._released()
        room = len(shown.encode()) - sum(len(token.data) for token in out)
        cut: list[TokenText] = []
        for token, _ in self._unreported:
            if room <= 0:
                break
            cut.append(replace(token, data=token.data[:room]))
            room -= len(token.data)
        self._unreported.clear()
        return (*out, *cut)
