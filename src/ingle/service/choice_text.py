"""Tokens of one choice to what a client sees: answer, reasoning and calls.

Stop strings are cut, and log-probabilities stay in line with the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ingle.contracts.request import TokenLogprobs
from ingle.parsing.calls import Call
from ingle.parsing.channels import Answer, Channels, Part, Reasoning
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
    """Text of the answer that may be shown, and the tokens that it finishes."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()


Shown: TypeAlias = Piece | Reasoning | Call


class ChoiceText:
    """Joined pieces are the answer up to the stop string, if one matched (`stopped`).

    Stop strings are looked for in the answer alone: reasoning and calls cannot be cut in two. The bytes of
    all reported tokens join to the shown text: a token that a stop string or a mark cuts is reported with the
    bytes that are shown, tokens of reasoning and calls are not reported.
    """

    def __init__(self, tokenizer: Tokenizer, channels: Channels, stops: Sequence[str]) -> None:
        self._tokenizer, self._channels = tokenizer, channels
        self._matcher = StopMatcher(stops)
        self._stops = bool(stops)
        self._answered = 0  # characters of the answer so far
        self._shown = 0  # of them
        self._reported = 0  # of them, those of reported tokens
        self._open: deque[tuple[TokenText, int, int]] = deque()  # token, and its place in the decoded text
        self._ranges: list[tuple[int, str, int]] = []  # of the answer: place, text, characters before it
        self._unreported: list[tuple[TokenText, int]] = []  # token, characters of the answer with it
        self.stopped: str | None = None

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> list[Shown]:
        before = self._channels.decoded
        parts = self._channels.push(token_id)
        if logprobs is not None and not self._tokenizer.is_special(token_id):
            # A token inside a character has no text yet: its bytes count with the one that ends it.
            end = max(self._channels.decoded, before + 1)
            self._open.append((self._token_text(token_id, logprobs), before, end))
        return self._pieces(parts, self._channels.settled) if parts or self._open else []

    @property
    def reasoned(self) -> int:
        """Tokens of reasoning so far."""
        return self._channels.reasoned

    def push_run(self, token_ids: Sequence[int]) -> list[Shown] | None:
        """As `push` for each of a run without log-probabilities; None where each has to be looked at: a stop
        string ends the answer at one of them."""
        if self._stops or self._open:
            return None
        return self._pieces(self._channels.push_run(token_ids), self._channels.settled)

    def flush(self) -> list[Shown]:
        """What was held back, once nothing follows."""
        if self.stopped is not None:
            return []
        out = self._pieces(self._channels.flush(), self._channels.decoded + 1)
        return out if self.stopped is not None else [*out, *self._rest()]

    def _pieces(self, parts: Sequence[Part], settled: int) -> list[Shown]:
        """What may be shown of `parts`, when decoded characters are told apart up to `settled`."""
        out: list[Shown] = []
        for part in parts:
            if not isinstance(part, Answer):
                out += [*self._rest(), part]
                continue
            if self._open:
                self._ranges.append((part.start, part.text, self._answered))
            self._answered += len(part.text)
            shown, self.stopped = self._matcher.push(part.text)
            self._shown += len(shown)
            if self.stopped is not None:
                self._settle(self._channels.decoded + 1)
                return [*out, Piece(shown, self._cut())]
            out.append(Piece(shown))
        self._settle(settled)
        tokens = self._released()
        if tokens:
            out.append(Piece("", tokens))
        return out

    def _rest(self) -> list[Shown]:
        """What the stop strings hold back, once they cannot match any more."""
        text = self._matcher.flush()
        self._shown += len(text)
        self._settle(self._channels.settled)
        tokens = self._released()
        return [Piece(text, tokens)] if text or tokens else []

    def _settle(self, limit: int) -> None:
        """Tokens before `limit` to those of the answer, with the bytes that they have in it."""
        while self._open and self._open[0][2] <= limit:
            token, start, end = self._open.popleft()
            data, covered, behind = b"", 0, 0
            for place, text, before in self._ranges:
                first, last = max(start, place), min(end, place + len(text))
                if first < last:
                    data += text[first - place : last - place].encode()
                    covered, behind = covered + last - first, before + last - place
            if covered:
                whole = covered == end - start
                self._unreported.append((token if whole else replace(token, data=data), behind))
        oldest = self._open[0][1] if self._open else limit
        self._ranges = [r for r in self._ranges if r[0] + len(r[1]) > oldest]

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
        if count:
            self._reported = self._unreported[count - 1][1]
        del self._unreported[:count]
        return out

    def _cut(self) -> tuple[TokenText, ...]:
        """What may be reported, and of the token that the stop string cuts what is shown of it."""
        out = self._released()
        if not self._unreported or self._reported >= self._shown:
            return out
        token, _ = self._unreported[0]
        seen = token.data.decode("utf-8", "replace")[: self._shown - self._reported]
        self._unreported.clear()
        return (*out, replace(token, data=seen.encode()))
