"""An engine that takes one step when told to, and runs what it is given between steps on its own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ingle.engine.loop import Engine
from ingle.engine.residents import Residents


class SteppedEngine(Engine):
    def __init__(self, *args: Any, **options: Any) -> None:
        self._permits = threading.Semaphore(0)
        self._border = threading.Event()
        self._todo: deque[Callable[[Residents], None]] = deque()
        self._failed: list[AssertionError] = []
        super().__init__(*args, **options)

    def _receive(self) -> bool:
        self._border.set()
        self._permits.acquire()
        while self._todo:
            try:
                self._todo.popleft()(self._rows)
            except AssertionError as error:  # the test's thread wants it
                self._failed.append(error)
        return super()._receive()

    def step(self, count: int = 1) -> None:
        """`count` steps, fewer when all work is done."""
        for _ in range(count):
            self._border.wait(60)
            if not self.busy:
                return
            self._border.clear()
            self._permits.release()
            assert self._border.wait(60), "a step hangs"
            if self._failed:
                raise self._failed[0]

    def between_steps(self, work: Callable[[Residents], None]) -> None:
        """Before the next step, `work` gets the engine's rows."""
        self._todo.append(work)

    @property
    def busy(self) -> bool:
        with self._lock:
            return bool(self._live)

    def finish(self) -> None:
        while self.busy:
            self.step()

    def close(self, detail: str = "closed") -> None:
        self._permits.release(1_000_000)
        super().close(detail)
