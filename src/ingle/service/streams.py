"""Engine events on an asyncio loop: one wake-up of the loop for each engine step."""

from __future__ import annotations

import asyncio
from typing import Literal
from weakref import WeakKeyDictionary

from ingle.contracts.request import EngineEvent, Finished, Request
from ingle.engine.handle import EngineHandle
from ingle.errors import EngineError, EngineStopped, InvalidRequest


def own_end(ended: Finished) -> Literal["stop", "length"]:
    """How a request came to its own end.

    Raises:
        InvalidRequest, EngineError: it failed, by its own fault or by the engine's.
        EngineStopped: it was ended from outside.
    """
    if ended.reason == "error":
        message = ended.detail or "the engine failed"
        raise InvalidRequest(message, code="grammar_too_large") if ended.refused else EngineError(message)
    if ended.reason == "cancelled":
        raise EngineStopped(ended.detail or "the request was ended")
    return ended.reason


class EventStream:
    """The events of one request, in order. It holds at most one event for each token the request may
    generate, so a slow reader costs bounded memory."""

    def __init__(self, bridge: EventBridge, request: Request) -> None:
        self.request = request
        self._bridge = bridge
        self._held: list[EngineEvent] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> list[EngineEvent]:
        """All that came since the last time; waits for the first one.

        Raises what `fail` was given, after what came before it.
        """
        if not self._held and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._held:
            assert self._error is not None
            raise self._error
        held, self._held = self._held, []
        return held

    def put(self, event: EngineEvent) -> None:
        self._held.append(event)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the request without waiting for the engine: `next` raises `error` after what is queued."""
        self.abandon(str(error))
        self._error = error
        self._wake()

    def cancel(self, detail: str) -> None:
        """Ask the engine to end the request; its `Finished` still arrives."""
        self._bridge.engine.cancel(self.request.id, detail)

    def abandon(self, detail: str) -> None:
        """End the request and forget it: nobody reads its events any more. Does not wait."""
        self._bridge.streams.pop(self.request.id, None)
        self._bridge.engine.cancel(self.request.id, detail)


class EventBridge:
    """A subscriber that lives on one loop. Made by `bridge_of`."""

    def __init__(self, engine: EngineHandle, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.streams: dict[str, EventStream] = {}
        self._loop = loop

    def open(self, request: Request) -> EventStream:
        """Submit a request.

        Raises:
            InvalidRequest, QueueFull, EngineStopped: the engine does not take it.
        """
        stream = EventStream(self, request)
        self.streams[request.id] = stream
        try:
            self.engine.submit(request, self)
        except BaseException:
            del self.streams[request.id]
            raise
        return stream

    def deliver(self, events: list[tuple[str, EngineEvent]]) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[tuple[str, EngineEvent]]) -> None:
        for request_id, event in events:
            stream = self.streams.get(request_id)
            if stream is not None:
                stream.put(event)


class Bridges:
    """One bridge for each loop that talks to an engine."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, EventBridge] = WeakKeyDictionary()

    def here(self) -> EventBridge:
        """The running loop's bridge."""
        loop = asyncio.get_running_loop()
        bridge = self._by_loop.get(loop)
        if bridge is None:
            bridge = self._by_loop[loop] = EventBridge(self._engine, loop)
        return bridge
