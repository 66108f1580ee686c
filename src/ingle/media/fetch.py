"""Fetch one URL that a stranger wrote: every hop parsed, resolved, judged and dialled by the same code.

A hop resolves its name once and dials only addresses that were judged, all of them good; nothing is
reused between hops. Redirects are followed by hand. One clock runs over everything.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import httpcore2

from ingle.config import FetchPolicy
from ingle.contracts.media import MediaObserver, NoObserver
from ingle.errors import MediaRefused, QueueFull
from ingle.media.address import Address, Verdict, is_own, judge
from ingle.media.body import bad_answer, content_coding, declared_length, read_body, too_large
from ingle.media.decisions import log_decision
from ingle.media.dial import CheckedBackend, TooMuchRead, WireBudget
from ingle.media.resolve import Resolver, SystemResolver
from ingle.media.url import Target, parse_redirect, parse_target, refused_address

MAX_AT_ONCE = 32
MAX_QUEUED = 256
MAX_PER_HOST = 4
_HEAD_BYTES = 256 * 1024  # status line, headers and interim answers
_REDIRECTS = (301, 302, 303, 307, 308)
Judge = Callable[[Address], Verdict]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an address answered. `ok`: with a 2xx status."""

    ok: bool
    status: int
    url: str  # the last hop's
    content_type: str  # as declared; empty when it was not
    data: bytes = field(repr=False)


class Fetcher:
    """One for a server: its limits hold over all requests. Use it on one event loop.

    `resolver`, `judge_address` and `ssl_context` are for tests; the default judge follows `policy`.
    """

    def __init__(
        self,
        policy: FetchPolicy,
        *,
        observer: MediaObserver | None = None,
        resolver: Resolver | None = None,
        judge_address: Judge | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = policy
        self._observer = observer or NoObserver()
        self._resolver = resolver or SystemResolver()
        self._judge = judge_address or partial(judge, policy=policy, own=is_own)
        self._tls = ssl_context or httpcore2.default_ssl_context()
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._queued = 0
        self._hosts: dict[str, tuple[asyncio.Semaphore, int]] = {}  # with how many hold or want it

    async def fetch(
        self,
        url: str,
        *,
        max_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: str = "",
        success_only: bool = True,
    ) -> Fetched:
        """The answer at the end of the redirects. A refusal is final: nothing is tried again.

        `headers` go to the first origin only. With `success_only` another status than 2xx is an error.

        Raises:
            MediaRefused: not allowed, not resolved, not reachable, too large, too slow, or the status.
            QueueFull: too many fetches wait already.
        """
        cap = self.policy.max_bytes if max_bytes is None else max_bytes
        hop = _Hops(url, cap, dict(headers or {}), request_id)
        started = time.monotonic()
        result = "cancelled"
        try:
            async with self._turn():
                got = await self._in_time(hop)
            if success_only and not got.ok:
                raise MediaRefused(
                    f"the address answered {got.status}", code="media_status", detail=f"status {got.status}"
                )
            result = "fetched"
            return got
        except MediaRefused as error:
            result = error.code.removeprefix("media_")
            log_decision(request_id, "refused", error.code, error.detail, hop=hop.count, target=hop.target)
            raise
        except QueueFull:
            result = "queue_full"
            raise
        finally:
            self._observer.result("fetch", result)
            self._observer.phase("fetch", time.monotonic() - started)

    async def _in_time(self, hops: _Hops) -> Fetched:
        try:
            async with asyncio.timeout(self.policy.timeout_s):
                return await self._follow(hops)
        except TimeoutError:
            if hops.refusal is not None:  # known before the clock ran out
                raise hops.refusal from None
            raise MediaRefused(
                f"the address took longer than {self.policy.timeout_s:g} s",
                code="media_timeout",
                detail=f"over {self.policy.timeout_s:g} s",
            ) from None

    async def _follow(self, hops: _Hops) -> Fetched:
        target = parse_target(hops.url, self.policy)
        while True:
            hops.target = target
            async with self._host_turn(target.host):
                answer = await self._hop(target, hops)
            if isinstance(answer, Fetched):
                return answer
            if hops.count >= self.policy.max_redirects:
                raise bad_answer(f"more than {self.policy.max_redirects} redirects")
            hops.count += 1
            following = parse_redirect(target, answer, self.policy)
            if following.origin != target.origin:
                hops.headers.clear()
            target = following

    async def _hop(self, target: Target, hops: _Hops) -> Fetched | bytes:
        """The answer, or the Location of a redirect. The connection ends with the hop."""
        addresses = await self._addresses(target, hops)
        budget = WireBudget(_HEAD_BYTES)
        backend = CheckedBackend(addresses, budget)
        origin = httpcore2.Origin(target.scheme.encode(), target.host.encode(), target.port)
        connection = httpcore2.AsyncHTTPConnection(origin, self._tls, network_backend=backend)
        request = httpcore2.Request(
            "GET",
            httpcore2.URL(
                scheme=origin.scheme, host=origin.host, port=origin.port, target=target.path.encode()
            ),
            headers=_request_headers(target, hops.headers),
        )
        try:
            return await self._exchange(connection, request, target, hops, budget)
        except TooMuchRead:
            raise bad_answer("more on the wire than the answer may cost") from None
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise MediaRefused(
                "the address could not be reached", code="media_unreachable", detail=str(error)
            ) from None
        except (httpcore2.ProtocolError, httpcore2.NetworkError, httpcore2.TimeoutException) as error:
            raise bad_answer(f"{type(error).__name__}: {error}") from None
        except MediaRefused as error:
            hops.refusal = error
            raise
        finally:
            await backend.aclose()  # the socket first: a clean goodbye may take time
            await connection.aclose()
            if backend.dialled is not None:
                log_decision(hops.request_id, "dialled", "", str(backend.dialled), hops.count, target)

    async def _exchange(
        self,
        connection: httpcore2.AsyncHTTPConnection,
        request: httpcore2.Request,
        target: Target,
        hops: _Hops,
        budget: WireBudget,
    ) -> Fetched | bytes:
        started = time.monotonic()
        response = await connection.handle_async_request(request)
        self._observer.phase("answer", time.monotonic() - started)
        if response.status in _REDIRECTS:
            locations = [value for name, value in response.headers if name.lower() == b"location"]
            return locations[0] if len(locations) == 1 else b""
        declared = declared_length(response.headers)
        if declared is not None and declared > hops.max_bytes:
            raise too_large(hops.max_bytes, f"declares {declared} bytes")
        gzipped = content_coding(response.headers)
        budget.left = 8 * hops.max_bytes + 2**20  # a byte in a chunk of its own costs seven
        assert isinstance(response.stream, AsyncIterable)
        data = await read_body(response.stream, gzipped=gzipped, max_bytes=hops.max_bytes)
        kind = next((v.decode("latin-1") for n, v in response.headers if n.lower() == b"content-type"), "")
        return Fetched(200 <= response.status < 300, response.status, target.url, kind, data)

    async def _addresses(self, target: Target, hops: _Hops) -> list[Address]:
        """The host's addresses, all of them good."""
        if target.address is not None:
            found = [target.address]
        else:
            started = time.monotonic()
            found = await self._resolver.resolve(target.host)
            self._observer.phase("resolve", time.monotonic() - started)
        verdicts = [self._judge(address) for address in found]
        for verdict in verdicts:
            if not verdict.allowed:
                raise refused_address(
                    f"{target.host} is at {verdict.address}: {verdict.reason}",
                    private=verdict.private,
                    policy=self.policy,
                )
        return [verdict.address for verdict in verdicts]

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        if self._at_once.locked() and self._queued >= MAX_QUEUED:
            raise QueueFull(f"{MAX_QUEUED} fetches wait already, the limit is {MAX_QUEUED}")
        self._queued += 1
        try:
            await self._at_once.acquire()
        finally:
            self._queued -= 1
        try:
            yield
        finally:
            self._at_once.release()

    @asynccontextmanager
    async def _host_turn(self, host: str) -> AsyncGenerator[None]:
        turns, users = self._hosts.get(host, (asyncio.Semaphore(MAX_PER_HOST), 0))
        self._hosts[host] = turns, users + 1
        try:
            async with turns:
                yield
        finally:
            turns, users = self._hosts[host]
            if users == 1:
                del self._hosts[host]
            else:
                self._hosts[host] = turns, users - 1


@dataclass(slots=True)
class _Hops:
    """Where one fetch stands."""

    url: str
    max_bytes: int
    headers: dict[str, str]
    request_id: str
    count: int = 0
    target: Target | None = None
    refusal: MediaRefused | None = None


def _request_headers(target: Target, extra: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    merged = {
        "accept": "*/*",
        "user-agent": "ingle",
        **{name.lower(): value for name, value in extra.items()},
        "host": target.authority,
        "accept-encoding": "identity",
        "connection": "close",
    }
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in merged.items()]
