"""Find stop strings in text that arrives in pieces, holding back no more than a real beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """The match that is complete first wins, so the result does not depend on how the text is cut;
    of matches that end at one place, the longest.

    Raises:
        ValueError: an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self._done = False

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop that matched). After a match everything is discarded."""
        if self._done:
            return "", None
        pending = self._held + text
        found = self._first_complete(pending)
        if found is not None:
            at, stop = found
            self._held, self._done = "", True
            return pending[:at], stop
        keep = self._held_back(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], None

    def flush(self) -> str:
        """The held text, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return None
        _, at, stop = min(found)
        return at, stop

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
