"""Names to addresses: asked once for each hop, bounded in time and threads, replaceable in tests."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ingle.errors import MediaRefused
from ingle.media.address import Address, parse_address


class Resolver(Protocol):
    async def resolve(self, host: str) -> list[Address]:
        """All addresses of `host`, in the order to try.

        Raises:
            MediaRefused: there are none, or they did not come in time.
        """
        ...


class SystemResolver:
    """The system's own resolver, on threads of its own: a slow name server holds nothing else up."""

    def __init__(self, *, timeout_s: float = 3.0, threads: int = 8) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ingle-dns")

    async def resolve(self, host: str) -> list[Address]:
        loop = asyncio.get_running_loop()
        # The trailing dot keeps search domains out.
        asked = loop.run_in_executor(self._threads, _ask, host + ".")
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await asked
        except TimeoutError:
            raise unresolved(f"no answer for {host} in {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise unresolved(f"{host}: {error}") from None
        addresses = [parsed for text in found if (parsed := parse_address(text)) is not None]
        if not addresses or len(addresses) < len(found):
            raise unresolved(f"{host}: {found}")
        return addresses

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _ask(host: str) -> list[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def unresolved(detail: str) -> MediaRefused:
    return MediaRefused("the address could not be resolved", code="media_unresolved", detail=detail)
