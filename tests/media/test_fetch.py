"""The fetcher against servers that mean harm, and each of its guards taken away once.

A scenario is a coroutine over a `Net`. It must pass as things are, and fail when the guard that it
watches is replaced: `MUTATIONS` lists which.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import ada_url
import httpcore2
import pytest

from ingle.config import FetchPolicy
from ingle.errors import MediaRefused, QueueFull
from ingle.media import body, dial, fetch, url
from ingle.media.address import Verdict
from ingle.media.resolve import SystemResolver
from ingle.media.web_fetch import web_fetch
from support.web import INTERNAL, PUBLIC, Net, answer

Scenario = Callable[[Net], Awaitable[None]]
PNG = b"\x89PNG picture"


def run(scenario: Scenario) -> None:
    async def main() -> None:
        async with Net() as net:
            await scenario(net)

    asyncio.run(main())


async def refused(net: Net, address: str, code: str, **options: Any) -> MediaRefused:
    policy = options.pop("policy", {})
    with pytest.raises(MediaRefused) as caught:
        await net.fetcher(**policy).fetch(address, **options)
    assert caught.value.code == "media_" + code, caught.value.detail
    for secret in (INTERNAL, PUBLIC, "errno", "Errno", "inside"):
        assert secret not in caught.value.message
    return caught.value


async def plain_answer(net: Net) -> None:
    net.pages["/a.png?x=1"] = answer(PNG, "200 OK", "Content-Type: image/png")
    got = await net.fetcher().fetch(net.url("/a.png?x=1#frag"))
    assert (got.ok, got.status, got.data, got.content_type) == (True, 200, PNG, "image/png")
    head = net.requests[0].lower()
    assert b"\r\nhost: site.test.com:%d\r\n" % net.port in head
    assert b"accept-encoding: identity" in head and b"cookie" not in head


async def name_is_asked_once_and_pinned(net: Net) -> None:
    net.names.answers["site.test.com"] = [[PUBLIC], [INTERNAL]]  # rebinding
    net.pages["/"] = answer(PNG)
    assert (await net.fetcher().fetch(net.url())).data == PNG
    assert net.names.asked == ["site.test.com"]
    assert net.connections == {PUBLIC: 1, INTERNAL: 0}


async def every_hop_is_asked_anew(net: Net) -> None:
    net.names.answers["site.test.com"] = [[PUBLIC], [INTERNAL]]
    net.pages["/"] = answer(b"", "302 Found", "Location: /next")
    await refused(net, net.url(), "not_allowed")
    assert net.names.asked == ["site.test.com"] * 2 and net.connections[INTERNAL] == 0


async def one_bad_address_spoils_all(net: Net) -> None:
    for mixed in ([PUBLIC, INTERNAL], [INTERNAL, PUBLIC], [PUBLIC] * 6 + [INTERNAL]):
        net.names.answers["site.test.com"] = [mixed]
        net.names.asked.clear()
        await refused(net, net.url(), "not_allowed")
    assert net.connections == {PUBLIC: 0, INTERNAL: 0}


async def internal_name(net: Net) -> None:
    await refused(net, net.url(host="inside.test.com"), "not_allowed")
    assert net.connections[INTERNAL] == 0


async def hostile_locations(net: Net) -> None:
    port = net.port
    for location in (
        f"http://{INTERNAL}:{port}/",
        f"http://inside.test.com:{port}/",
        f"//{INTERNAL}:{port}/",
        f"//inside.test.com:{port}/",
        f"http://site.test.com@{INTERNAL}:{port}/",
        f"http://site.test.com\\@{INTERNAL}:{port}/",
        f"\\\\{INTERNAL}:{port}\\x",
        f"http:{INTERNAL}:{port}",
        f"http:/{INTERNAL}:{port}/",
        f"http://0x7f000001:{port}/",
        f"http://[::ffff:127.0.0.1]:{port}/",
        "http://site.test.com:22/",
        "file:///etc/passwd",
        "gopher://site.test.com/",
        "data:image/png;base64,AAAA",
        "javascript:alert(1)",
        f"http://{INTERNAL}:{port}/\u0101",
    ):
        net.pages["/"] = answer(b"", "302 Found", "Location: " + location.encode().decode("latin-1"))
        await refused(net, net.url(), "not_allowed")
    assert net.connections[INTERNAL] == 0


async def useless_locations(net: Net) -> None:
    for headers in (
        [],
        ["Location:"],
        ["Location: http://["],
        ["Location: /a", "Location: /b"],
        ["Location: /a b"],
    ):
        net.pages["/"] = answer(b"", "302 Found", *headers)
        with pytest.raises(MediaRefused):
            await net.fetcher().fetch(net.url())
    assert len(net.requests) == 5


async def redirects_are_followed(net: Net) -> None:
    for status in ("301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"):
        net.pages["/dir/a"] = answer(b"not read" * 100_000, status, "Location: ../b?q=1")
        net.pages["/b?q=1"] = answer(PNG)
        got = await net.fetcher().fetch(net.url("/dir/a"))
        assert got.data == PNG and got.url == net.url("/b?q=1")


async def redirects_end(net: Net) -> None:
    for hop in range(9):
        net.pages[f"/{hop}"] = answer(b"", "302 Found", f"Location: /{hop + 1}")
    net.pages["/5"] = answer(PNG)
    assert (await net.fetcher().fetch(net.url("/0"))).data == PNG  # five redirects pass
    net.pages["/5"] = answer(b"", "302 Found", "Location: /6")
    net.pages["/6"] = answer(PNG)
    net.requests.clear()
    await refused(net, net.url("/0"), "bad_answer")
    assert len(net.requests) == 6


async def callers_headers_stay_with_their_origin(net: Net) -> None:
    net.pages["/same"] = answer(b"", "302 Found", "Location: /other")
    net.pages["/other"] = answer(b"", "302 Found", f"Location: {net.url('/end', host='other.test.com')}")
    net.pages["/end"] = answer(PNG)
    await net.fetcher().fetch(net.url("/same"), headers={"Authorization": "Bearer secret", "Host": "evil"})
    assert [b"secret" in head for head in net.requests] == [True, True, False]
    assert not any(b"evil" in head for head in net.requests)


async def no_step_down_from_https(net: Net) -> None:
    await net.listen_tls("site.test.com")
    net.pages["/"] = answer(b"", "302 Found", f"Location: {net.url('/plain')}")
    net.pages["/plain"] = answer(PNG)
    await refused(net, net.url(scheme="https"), "not_allowed")


async def https_verifies_the_name(net: Net) -> None:
    await net.listen_tls("site.test.com")
    net.pages["/"] = answer(PNG)
    assert (await net.fetcher().fetch(net.url(scheme="https"))).data == PNG
    await refused(net, net.url(scheme="https", host="other.test.com"), "unreachable")


async def a_certificate_for_the_address_is_not_enough(net: Net) -> None:
    await net.listen_tls(PUBLIC)
    net.pages["/"] = answer(PNG)
    await refused(net, net.url(scheme="https"), "unreachable")


async def declared_length_is_checked_first(net: Net) -> None:
    async def page(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(30)

    net.pages["/"] = page
    started = time.monotonic()
    await refused(net, net.url(), "too_large", max_bytes=1000)
    assert time.monotonic() - started < 2


async def bytes_are_counted(net: Net) -> None:
    async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await writer.drain()

    async def until_close(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001)

    for page in (endless, until_close):
        net.pages["/"] = page
        await refused(net, net.url(), "too_large", max_bytes=1000)
    net.pages["/"] = answer(b"x" * 1000)
    assert len((await net.fetcher().fetch(net.url(), max_bytes=1000)).data) == 1000


async def truncated_bodies_are_errors(net: Net) -> None:
    for page in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        answer(gzip.compress(PNG)[:-4], "200 OK", "Content-Encoding: gzip"),
        b"HTTP/1.1 200",
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ):
        net.pages["/"] = page
        await refused(net, net.url(), "bad_answer")


async def one_gzip_layer(net: Net) -> None:
    net.pages["/"] = answer(gzip.compress(PNG), "200 OK", "Content-Encoding: gzip")
    assert (await net.fetcher().fetch(net.url(), max_bytes=len(gzip.compress(PNG)))).data == PNG
    for coding in ("br", "zstd", "deflate", "gzip, gzip", "gzip\r\nContent-Encoding: gzip"):
        net.pages["/"] = answer(PNG, "200 OK", f"Content-Encoding: {coding}")
        await refused(net, net.url(), "bad_answer")
    net.pages["/"] = answer(gzip.compress(PNG) + b"more", "200 OK", "Content-Encoding: gzip")
    await refused(net, net.url(), "bad_answer")
    exact = b"y" * 5000
    packed = gzip.compress(exact)

    async def late_trailer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(packed[:-8], "200 OK", "Content-Encoding: gzip", length=False))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(packed[-8:])

    net.pages["/"] = late_trailer
    assert (await net.fetcher().fetch(net.url(), max_bytes=5000)).data == exact


async def gzip_bombs_stay_small(net: Net) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(200)) + packer.flush()
    net.pages["/"] = answer(bomb, "200 OK", "Content-Encoding: gzip")
    fetcher = net.fetcher()
    tracemalloc.start()
    with pytest.raises(MediaRefused) as caught:
        await fetcher.fetch(net.url())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "media_too_large"
    assert peak < 4 * 2**20


async def headers_are_bounded(net: Net) -> None:
    async def flood(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    async def endless_interim(_: bytes, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await writer.drain()

    for page in (flood, endless_interim):
        net.pages["/"] = page
        started = time.monotonic()
        await refused(net, net.url(), "bad_answer")
        assert time.monotonic() - started < 4


async def one_clock_for_everything(net: Net) -> None:
    async def silence(_: bytes, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def slow_head(_: bytes, writer: asyncio.StreamWriter) -> None:
        for byte in answer(PNG):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    async def drip(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async def loop(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(answer(b"", "302 Found", "Location: /"))

    for page in (silence, slow_head, drip, loop):
        net.pages["/"] = page
        started = time.monotonic()
        async with asyncio.timeout(3):
            await refused(net, net.url(), "timeout", policy={"timeout_s": 0.5, "max_redirects": 20})
        assert time.monotonic() - started < 2


async def too_large_stays_too_large_when_time_is_up(net: Net) -> None:
    fetcher = net.fetcher(timeout_s=0.5)
    net.pages["/"] = answer(b"x" * 100)
    original = httpcore2.AsyncHTTPConnection.aclose

    async def slow_close(self: Any) -> None:
        await asyncio.sleep(1)
        await original(self)

    httpcore2.AsyncHTTPConnection.aclose = slow_close
    try:
        with pytest.raises(MediaRefused) as caught:
            await fetcher.fetch(net.url(), max_bytes=10)
    finally:
        httpcore2.AsyncHTTPConnection.aclose = original
    assert caught.value.code == "media_too_large"


async def cancelling_is_at_once_and_no_timeout(net: Net) -> None:
    gone = asyncio.Event()

    async def silence(_: bytes, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()
        gone.set()

    net.pages["/"] = silence
    task = asyncio.create_task(net.fetcher().fetch(net.url()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def statuses(net: Net) -> None:
    net.pages["/"] = answer(b"gone", "404 Not Found")
    error = await refused(net, net.url(), "status")
    assert error.message == "the address answered 404"
    page = await web_fetch(net.url(), fetcher=net.fetcher())
    assert (page.ok, page.status, page.data) == (False, 404, b"gone")


async def a_refusal_is_final(net: Net) -> None:
    net.pages["/"] = answer(b"", "503 Busy")
    await refused(net, net.url(), "status")
    assert len(net.requests) == 1


async def unknown_names_and_closed_ports(net: Net) -> None:
    assert (
        await refused(net, net.url(host="unknown.test.com"), "unresolved")
    ).message == "the address could not be resolved"
    closed = net.url().replace(str(net.port), "9999")
    await refused(net, closed, "unreachable")


async def the_next_good_address_is_dialled(net: Net) -> None:
    net.names.answers["site.test.com"] = [["127.0.0.3", PUBLIC]]  # nobody listens on .3
    net.pages["/"] = answer(PNG)
    assert (await net.fetcher().fetch(net.url())).data == PNG


async def few_at_a_time_for_one_host(net: Net) -> None:
    open_now = most = 0

    async def page(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.05)
        open_now -= 1
        writer.write(answer(PNG))

    net.pages["/"] = page
    fetcher = net.fetcher()
    await asyncio.gather(*(fetcher.fetch(net.url()) for _ in range(12)))
    assert most == fetch.MAX_PER_HOST
    assert fetcher._hosts == {}


async def the_queue_is_bounded(net: Net) -> None:
    async def silence(_: bytes, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    net.pages["/"] = silence
    fetcher = net.fetcher()
    tasks = [asyncio.create_task(fetcher.fetch(net.url())) for _ in range(32 + 256)]
    await asyncio.sleep(0.2)
    with pytest.raises(QueueFull):
        async with asyncio.timeout(1):
            await fetcher.fetch(net.url())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


SCENARIOS = [
    plain_answer, name_is_asked_once_and_pinned, every_hop_is_asked_anew, one_bad_address_spoils_all, internal_name,
    hostile_locations, useless_locations, redirects_are_followed, redirects_end, callers_headers_stay_with_their_origin,
    no_step_down_from_https, https_verifies_the_name, a_certificate_for_the_address_is_not_enough,
    declared_length_is_checked_first, bytes_are_counted, truncated_bodies_are_errors, one_gzip_layer,
    gzip_bombs_stay_small, headers_are_bounded, one_clock_for_everything, too_large_stays_too_large_when_time_is_up,
    cancelling_is_at_once_and_no_timeout, statuses, a_refusal_is_final, unknown_names_and_closed_ports,
    the_next_good_address_is_dialled, few_at_a_time_for_one_host, the_queue_is_bounded,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_fetch(scenario: Scenario) -> None:
    run(scenario)


def _judge_first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = fetch.Fetcher._addresses

    async def careless(self: Any, target: Any, hops: Any) -> Any:
        found = await self._resolver.resolve(target.host) if target.address is None else [target.address]
        verdict = self._judge(found[0])
        if not verdict.allowed:
            return await original(self, target, hops)
        return found

    monkeypatch.setattr(fetch.Fetcher, "_addresses", careless)


def _judge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "refused_address", lambda *_, **__: fetch.bad_answer("x"))
    monkeypatch.setattr("support.web.judge", lambda address: Verdict(address, True, ""))


def _dial_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = fetch.Fetcher._hop

    async def twice(self: Any, target: Any, hops: Any) -> Any:
        await self._resolver.resolve(target.host)
        return await original(self, target, hops)

    monkeypatch.setattr(fetch.Fetcher, "_hop", twice)


def _join_like_urllib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirects resolved by the lenient parser alone, without the gates on the raw text."""

    def lenient(base: url.Target, location: bytes, policy: FetchPolicy) -> url.Target:
        joined = ada_url.URL(ada_url.join_url(base.url, location.decode("latin-1")))
        port = int(joined.port or 80)
        return url.Target("http", joined.hostname, port, joined.pathname, url.parse_address(joined.hostname))

    monkeypatch.setattr(fetch, "parse_redirect", lenient)


def _no_downgrade_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fetch, "parse_redirect", lambda base, location, policy: url.parse_target(location.decode(), policy)
    )


def _keep_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url.Target, "origin", property(lambda _: "always the same"))


def _no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    original = dial._CountedStream.start_tls

    async def lax(self: Any, ssl_context: Any, server_hostname: Any = None, timeout: Any = None) -> Any:
        ssl_context.check_hostname = False
        return await original(self, ssl_context, server_hostname, timeout)

    monkeypatch.setattr(dial._CountedStream, "start_tls", lax)


def _no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_PER_HOST", 1000)


MUTATIONS: list[tuple[Callable[[pytest.MonkeyPatch], None], Scenario]] = [
    (_judge_first_only, one_bad_address_spoils_all),
    (_judge_nothing, internal_name),
    (_dial_by_name, name_is_asked_once_and_pinned),
    (_join_like_urllib, hostile_locations),
    (_no_downgrade_check, no_step_down_from_https),
    (_keep_headers, callers_headers_stay_with_their_origin),
    (_no_verification, https_verifies_the_name),
    (_no_verification, a_certificate_for_the_address_is_not_enough),
    (lambda m: m.setattr(fetch, "declared_length", lambda _: None), declared_length_is_checked_first),
    (lambda m: m.setattr(fetch, "content_coding", lambda _: False), one_gzip_layer),
    (lambda m: m.setattr(body._GzipSize, "push", lambda *_: None), one_gzip_layer),
    (lambda m: m.setattr(body._GzipSize, "finish", lambda _: None), truncated_bodies_are_errors),
    (lambda m: m.setattr(dial.WireBudget, "spend", lambda *_: None), headers_are_bounded),
    (lambda m: m.setattr(asyncio, "timeout", lambda _: asyncio.Timeout(asyncio.get_running_loop().time() + 2)), one_clock_for_everything),
    (_no_turns, few_at_a_time_for_one_host),
    (lambda m: m.setattr(fetch, "MAX_QUEUED", 10_000), the_queue_is_bounded),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "scenario"), MUTATIONS, ids=lambda x: getattr(x, "__name__", "m"))
def test_each_guard_is_watched(
    mutate: Callable[[pytest.MonkeyPatch], None], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with suppress(asyncio.CancelledError), pytest.raises((Exception, pytest.fail.Exception)):
        run(scenario)


@pytest.mark.parametrize(
    ("gate", "address"),
    [
        ("_FORBIDDEN", "http://example.com\\x"),
        ("_FORBIDDEN_IN_AUTHORITY", "http://exa%6dple.com/"),
        ("_SPELLED_OUT", "http:/example.com/"),
        ("_LABEL", "http://exa$mple.com/"),
        ("_SPECIAL_USE", "http://printer.local/"),
        ("_BLOCKED_PORTS", "http://example.com:22/"),
        ("MAX_CHARS", "http://example.com/" + "a" * 9000),
    ],
)
def test_each_static_gate_is_watched(gate: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stops a URL that nothing else stops."""
    with pytest.raises(MediaRefused):
        url.parse_target(address, FetchPolicy())
    open_gates: dict[str, Any] = {
        "_FORBIDDEN": re.compile(r"(?!)"),
        "_FORBIDDEN_IN_AUTHORITY": re.compile(r"(?!)"),
        "_SPELLED_OUT": re.compile(r"(?P<authority>)"),
        "_LABEL": re.compile(r".*"),
        "MAX_CHARS": 10**6,
    }
    monkeypatch.setattr(url, gate, open_gates.get(gate, frozenset()))
    url.parse_target(address, FetchPolicy())


def test_the_system_resolver_knows_its_limits() -> None:
    async def main() -> None:
        resolver = SystemResolver(timeout_s=2)
        with pytest.raises(MediaRefused) as caught:
            await resolver.resolve("no-such-name.invalid")
        assert caught.value.code == "media_unresolved"
        resolver.close()

    asyncio.run(main())
