"""Pure ASGI layers around every route: request ids, counting, API keys, body size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingle.errors import TooLarge, Unauthorized
from ingle.server.errors import error_response
from ingle.server.metrics import Metrics

_DROP_BYTES = 256 * 1024 * 1024
_DROP_S = 10.0
_OPEN_PATHS = frozenset({"/", "/health"})
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Gives each request an id (the client's, if it is a plain one), answers with it and counts."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[str]) -> None:
        self._app, self._metrics, self._routes = app, metrics, frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["ingle.request_id"] = request_id
        # Unknown paths share one label, or anybody could make the metrics grow.
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.requests.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, tagged)


class ApiKeys:
    """Asks for one of the keys, as a bearer token or as `x-api-key`. Only digests are kept and compared."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        digest = self._digest(scope)
        if digest is not None:
            scope["ingle.client"] = digest
            await self._app(scope, receive, send)
            return
        error = Unauthorized(
            "missing or wrong API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        )
        await error_response(error, scope)(scope, receive, send)

    def _digest(self, scope: Scope) -> bytes | None:
        """Of the key that was sent, if it is one of ours."""
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # always all of them
        return digest if any(matches) else None


class BodyLimit:
    """Refuses bodies over a size, by their declared length or while they arrive.

    What the client still sends is read and dropped before the answer, up to a bound: a connection
    that is closed with unread bytes is reset, and the client would never see the reason.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            if "expect" not in headers:  # with it the client waits for our word before it sends
                await _drop_rest(receive)
            await error_response(self._error(f"{int(declared)} bytes"), scope)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                if message.get("more_body", False):
                    await _drop_rest(receive)
                raise self._error("more")
            return message

        await self._app(scope, counted, send)

    def _error(self, size: str) -> TooLarge:
        return TooLarge(f"the request body has {size}, this server's limit is {self._max_bytes} bytes")


async def _drop_rest(receive: Receive) -> None:
    """Read and drop a body until its end, a size or a time that no honest client needs."""
    dropped = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            while dropped <= _DROP_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):  # a disconnect has none either
                    return
