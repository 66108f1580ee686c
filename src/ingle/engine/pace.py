"""How many prompt tokens a step may take while somebody waits for the next token of a running stream."""

from __future__ import annotations

_LEAST = 16  # tokens of a window, however slow the machine
_GRAIN = 16
_FOLLOW = 0.3  # weight of the newest measurement


class Pace:
    """Learns from the steps: a step takes as long as its decode rows do, and so much for each prompt token.

    Windows are as large as the target for the gap between two tokens of a stream allows. Without running
    streams they have their full size.
    """

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s, self._most = target_s, most
        self._decode_s = 0.0
        self._per_token_s: float | None = None  # unknown before the first window

    def window(self, *, streams: bool) -> int:
        """Prompt tokens of the next step."""
        if not streams:
            return self._most
        if self._per_token_s is None:
            return min(self._most, 4 * _LEAST)
        room = (self._target_s - self._decode_s) / self._per_token_s
        return max(min(_LEAST, self._most), min(self._most, int(room) // _GRAIN * _GRAIN))

    def observe(self, *, streams: bool, tokens: int, seconds: float) -> None:
        """A step with `tokens` prompt tokens took `seconds`."""
        if tokens == 0:
            self._decode_s += _FOLLOW * (seconds - self._decode_s)
            return
        if tokens < _LEAST:
            return  # its fixed costs would look like the price of a token
        own = max(seconds - (self._decode_s if streams else 0.0), 0.1 * seconds) / tokens
        # Prompts get dearer with every window: follow upwards at once, downwards slowly.
        before = own if self._per_token_s is None else self._per_token_s
        self._per_token_s = own if own > before else before + _FOLLOW * (own - before)
