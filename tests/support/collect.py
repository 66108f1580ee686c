"""Wait for engine events in a test."""

from __future__ import annotations

import threading
from collections import defaultdict

from ingle.contracts.request import EngineEvent, Finished, TokenLogprobs, TokensCommitted


class Collector:
    """A subscriber that keeps everything. `wait` returns when a request has finished."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.events: dict[str, list[EngineEvent]] = defaultdict(list)
        self.deliveries = 0

    def deliver(self, events: list[tuple[str, EngineEvent]]) -> None:
        with self._changed:
            self.deliveries += 1
            for id, event in events:
                self.events[id].append(event)
            self._changed.notify_all()

    def wait(self, request_id: str, timeout_s: float = 60.0) -> Finished:
        with self._changed:
            done = self._changed.wait_for(lambda: self._finished(request_id) is not None, timeout_s)
            assert done, f"{request_id} did not finish within {timeout_s} s"
            finished = self._finished(request_id)
            assert finished is not None
            return finished

    def wait_tokens(self, request_id: str, count: int, timeout_s: float = 60.0) -> None:
        with self._changed:
            enough = self._changed.wait_for(
                lambda: len(self.tokens(request_id)) >= count or self._finished(request_id) is not None,
                timeout_s,
            )
            assert enough, f"{request_id} has {len(self.tokens(request_id))} of {count} tokens"

    def tokens(self, request_id: str) -> list[int]:
        return [t for e in self.events[request_id] if isinstance(e, TokensCommitted) for t in e.tokens]

    def logprobs(self, request_id: str) -> list[TokenLogprobs]:
        return [
            p for e in self.events[request_id] if isinstance(e, TokensCommitted) for p in e.logprobs or ()
        ]

    def _finished(self, request_id: str) -> Finished | None:
        ends = [e for e in self.events[request_id] if isinstance(e, Finished)]
        assert len(ends) <= 1, "a request finishes once"
        if ends:
            assert self.events[request_id][-1] is ends[0], "nothing follows Finished"
            return ends[0]
        return None
