"""Server-sent events by hand, and responses that end when the client goes away.

A `data:` line holds one JSON text, which has no line breaks of its own: newlines inside strings are
escaped, so framing needs nothing but the prefix and the blank line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """One event with `data` as JSON."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def named(name: str, data: Any) -> bytes:
    """One event with a name of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class EventStreamResponse(Response):
    """Sends the iterator's bytes as they come. The client's leaving closes the iterator at once, also
    while it waits for the engine."""

    def __init__(self, chunks: AsyncIterator[bytes], media_type: str = "text/event-stream") -> None:
        headers: Mapping[str, str] = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await until_disconnect(receive, self._send(send))
        except (ClientGone, OSError):
            return

    async def _send(self, send: Send) -> None:
        async for chunk in self._chunks:
            if not chunk:
                continue
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
