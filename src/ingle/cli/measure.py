"""Measure a running engine: prompt and decode rates from the times at which tokens arrive."""

from __future__ import annotations

import random
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable

from ingle.contracts.request import EngineEvent, Finished, Request, SamplingParams, TokensCommitted
from ingle.engine.handle import EngineHandle
from ingle.errors import EngineError


class _Stopwatch:
    """A subscriber that notes when each token arrives."""

    def __init__(self) -> None:
        self.arrivals: dict[str, list[float]] = {}
        self._open = 0
        self._failed: str | None = None
        self._changed = threading.Condition()

    def expect(self, request_id: str) -> None:
        self.arrivals[request_id] = []
        self._open += 1

    def deliver(self, events: list[tuple[str, EngineEvent]]) -> None:
        now = time.perf_counter()
        with self._changed:
            for id, event in events:
                if isinstance(event, TokensCommitted):
                    self.arrivals[id] += [now] * len(event.tokens)
                elif isinstance(event, Finished):
                    self._open -= 1
                    if event.reason != "length":
                        self._failed = f"{event.reason}: {event.detail}"
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)
        if self._failed is not None:
            raise EngineError(f"a measured request ended early ({self._failed})")


class Meter:
    """Runs made-up requests on one engine. Rates are tokens per second."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine
        self._random = random.Random(0)  # noqa: S311 - prompts need variety, not secrecy
        self._count = 0

    def prefill(self, tokens: int) -> tuple[float, float]:
        """(prompt tokens per second, time to first token in ms) of one prompt on an idle engine."""
        started, arrivals = self._run(streams=1, prompt=tokens, output=1)
        seconds = arrivals[0][0] - started
        return tokens / seconds, seconds * 1e3

    def decode(self, streams: int, tokens: int, prompt: int) -> float:
        """Tokens per second of all streams together, from the last stream's first token to the end."""
        _, arrivals = self._run(streams=streams, prompt=prompt, output=tokens)
        start = max(times[0] for times in arrivals)
        end = max(times[-1] for times in arrivals)
        return sum(sum(t > start for t in times) for times in arrivals) / (end - start)

    def _run(self, *, streams: int, prompt: int, output: int) -> tuple[float, list[list[float]]]:
        watch = _Stopwatch()
        requests = [self._request(prompt, output) for _ in range(streams)]
        for request in requests:
            watch.expect(request.id)
        started = time.perf_counter()
        for request in requests:
            self._engine.submit(request, watch)
        watch.wait()
        return started, list(watch.arrivals.values())

    def _request(self, prompt: int, output: int) -> Request:
        self._count += 1
        ids = tuple(self._random.randrange(self._engine.info.vocab_size) for _ in range(prompt))
        sampling = SamplingParams(temperature=0.0, max_tokens=output)
        return Request(id=f"bench-{self._count}", prompt=ids, sampling=sampling)


def median(measure: Callable[[], float], repeats: int) -> float:
    return statistics.median(measure() for _ in range(repeats))


def peak_rss_mb() -> float:
    """The most memory this process has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
