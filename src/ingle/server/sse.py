"""Server-sent events by hand, and responses that end when the client goes away.

A `data:` line holds one JSON text, which has no line breaks of its own: newlines inside strings are
escaped, so framing needs nothing but the prefix and the blank line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
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


KEEP_ALIVE = b": keep-alive\n\n"


class EventStreamResponse(Response):
    """Sends the iterator's bytes as they come. The client's leaving closes the iterator at once, also
    while it waits for the engine. A stream that is silent for long, such as during a long prompt, sends
    comments: proxies and clients would give up on it."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        media_type: str = "text/event-stream",
        *,
        keep_alive_s: float | None = None,
    ) -> None:
        """`keep_alive_s`: the longest silence; None where the format has no comments."""
        headers: Mapping[str, str] = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._chunks, self._keep_alive_s = chunks, keep_alive_s
        self._sent = 0  # chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        silence = self._keep_alive_s
        beats = None if silence is None else asyncio.create_task(self._beat(send, silence))
        try:
            await until_disconnect(receive, self._send(send))
        except (ClientGone, OSError):
            return
        finally:
            if beats is not None:
                beats.cancel()

    async def _send(self, send: Send) -> None:
        async for chunk in self._chunks:
            if not chunk:
                continue
            self._sent += 1
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sent = -1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send, silence_s: float) -> None:
        with suppress(OSError):
            while self._sent >= 0:
                before = self._sent
                await asyncio.sleep(silence_s)
                if self._sent == before:
                    await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


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
