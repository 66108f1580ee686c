"""Pure ASGI layers around every route: request ids, logs, who may ask, body size."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingle.errors import Forbidden, RequestError, TooLarge, Unauthorized
from ingle.server.clients import Clients
from ingle.server.errors import error_response
from ingle.server.metrics import Metrics

_log = logging.getLogger("ingle.requests")

_DROP_BYTES = 256 * 1024 * 1024
_DROP_S = 10.0
_OPEN_PATHS = frozenset({"/", "/health"})
_OPEN_PREFIX = "/web/"  # the chat page: it asks for a key itself
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d{1,5})?")
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


class Requests:
    """Gives each request an id (the client's, if it is a plain one), answers with it, counts and logs.

    What a request holds until its last byte, routes leave in `scope["ingle.held"]`: it is let go here.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[str]) -> None:
        self._app, self._metrics, self._routes = app, metrics, frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["ingle.request_id"] = request_id
        scope["ingle.held"] = []
        scope["ingle.facts"] = {}  # for the log
        started, status = time.monotonic(), 0
        # Unknown paths share one label, or anybody could make the metrics grow.
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.requests.labels(route, str(status)).inc()
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        finally:
            for release in scope["ingle.held"]:
                release()
            if _log.isEnabledFor(logging.INFO):
                facts = {
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "seconds": round(time.monotonic() - started, 4),
                    **scope["ingle.facts"],
                }
                _log.info("%s %s %d", scope["method"], scope["path"], status, extra={"facts": facts})


class OwnPages:
    """Refuses what a web page of somebody else sends from the user's browser.

    A page may send simple requests to any address without asking; its `Origin` tells it. By DNS rebinding it
    may even read the answers, under a name that leads here: so on a loopback address only names of loopback
    are answered.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], hosts: Sequence[str], *, loopback: bool) -> None:
        self._app, self._origins, self._loopback = app, frozenset(origins), loopback
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is not None:
            await error_response(problem, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> Forbidden | None:
        host = headers.get("host", "")
        if self._loopback and host and not self._is_ours(host):
            return Forbidden(
                f"{host[:80]!r} is not a name of this server (--allowed-host adds one)", param="host"
            )
        origin = headers.get("origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return None
        parts = urlsplit(origin)
        if parts.netloc and parts.netloc.lower() == host.lower():
            return None
        return Forbidden(
            f"pages of {origin[:80]!r} may not use this server (--cors-origin lets them)", param="origin"
        )

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        if name in _LOCAL_NAMES or name in self._hosts or "*" in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name.endswith(".localhost")


class ApiKeys:
    """Asks for one of the keys, as a bearer token or as `x-api-key`, and holds it to its limits."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app, self._clients = app, clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path in _OPEN_PATHS or path.startswith(_OPEN_PREFIX):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            secret = headers.get("x-api-key", "")
        key = self._clients.find(secret.strip())
        try:
            if key is None:
                how = "'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                raise Unauthorized(f"missing or wrong API key; send it as {how}")
            self._clients.enter(key)
        except RequestError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        scope["ingle.client"] = key.digest
        scope["ingle.facts"]["client"] = key.name
        try:
            await self._app(scope, receive, send)
        finally:
            self._clients.leave(key)


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
