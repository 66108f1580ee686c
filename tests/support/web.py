"""Hostile web servers on loopback: 127.0.0.2 plays a public host, 127.0.0.1 one that nobody may reach."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import trustme

from ingle.config import FetchPolicy
from ingle.media.address import Address, Verdict
from ingle.media.fetch import Fetcher
from ingle.media.resolve import unresolved

PUBLIC, INTERNAL = "127.0.0.2", "127.0.0.1"
Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"", status: str = "200 OK", *headers: str, length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class Names:
    """A resolver with a script: each question takes the next answer, the last one stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): lists for name, lists in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> list[Address]:
        self.asked.append(host)
        lists = self.answers.get(host)
        if lists is None:
            raise unresolved(host)
        count = self.asked.count(host)
        return [ip_address(text) for text in lists[min(count, len(lists)) - 1]]


def judge(address: Address) -> Verdict:
    public = str(address) in (PUBLIC, "127.0.0.3")
    return Verdict(address, public, "public" if public else "internal")


class Net:
    """Servers with counted connections, and a fetcher that knows only them."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Handler] = {}
        self.connections = {PUBLIC: 0, INTERNAL: 0}
        self.requests: list[bytes] = []
        self.names = Names(site_test_com=[[PUBLIC]], other_test_com=[[PUBLIC]], inside_test_com=[[INTERNAL]])
        self.port = self.tls_port = 0
        self.ca = trustme.CA()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Net:
        self.port = await self._listen(PUBLIC, 0, None)
        await self._listen(INTERNAL, self.port, None)
        return self

    async def listen_tls(self, *identities: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*identities).configure_cert(context)
        self.tls_port = await self._listen(PUBLIC, 0, context)

    async def _listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self.connections[host] += 1
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                page = self.pages.get(head.split(b" ")[1].decode(), answer(b"", "404 Not Found"))
                if isinstance(page, bytes):
                    writer.write(page)
                    await writer.drain()
                else:
                    await page(head, writer)
            writer.close()
            self._tasks.discard(task)

        server = await asyncio.start_server(serve, host, port, ssl=tls)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)

    def fetcher(self, **policy: Any) -> Fetcher:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        chosen: dict[str, Any] = {"timeout_s": 5.0, **policy}
        return Fetcher(FetchPolicy(**chosen), resolver=self.names, judge_address=judge, ssl_context=context)

    def url(self, path: str = "/", host: str = "site.test.com", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.tls_port if scheme == 'https' else self.port}{path}"
