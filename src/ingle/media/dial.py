"""Connections to addresses that were checked, and to no other; and a count of every byte that comes in."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Any, cast

import httpcore2

from ingle.media.address import Address

MAX_DIALLED = 4
CONNECT_TIMEOUT_S = 3.0


class TooMuchRead(Exception):
    """The server sent more than the hop may cost on the wire."""


class WireBudget:
    """Bytes that a hop may still bring in, whatever they are: headers, chunk sizes, body."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooMuchRead


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Dials the given addresses in order, whatever host it is asked for."""

    def __init__(self, addresses: Sequence[Address], budget: WireBudget) -> None:
        self._addresses = addresses[:MAX_DIALLED]
        self._budget = budget
        self._dialler = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
        self._stream: httpcore2.AsyncNetworkStream | None = None
        self.dialled: Address | None = None

    async def aclose(self) -> None:
        """Close what was dialled, also where a handshake was left half-way."""
        if self._stream is not None:
            await self._stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("no address to dial")
        for address in self._addresses:
            try:
                stream = await self._dialler.connect_tcp(str(address), port, timeout=CONNECT_TIMEOUT_S)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
                continue
            self.dialled, self._stream = address, stream
            return _CountedStream(stream, self._budget)
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("sockets of this machine are not dialled")

    async def sleep(self, seconds: float) -> None:
        await self._dialler.sleep(seconds)


class _CountedStream(httpcore2.AsyncNetworkStream):
    def __init__(self, inner: httpcore2.AsyncNetworkStream, budget: WireBudget) -> None:
        self._inner, self._budget = inner, budget

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._budget.spend(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        # Counted above TLS: what it adds is a small share of what the peer sends.
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _CountedStream(inner, self._budget)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
