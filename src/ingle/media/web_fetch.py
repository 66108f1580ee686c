"""A page for a tool that a model calls: the same loader, gates and caps as for media."""

from __future__ import annotations

from ingle.config import FetchPolicy
from ingle.media.fetch import Fetched, Fetcher

MAX_PAGE_BYTES = 2 * 2**20


async def web_fetch(
    url: str, *, fetcher: Fetcher | None = None, max_bytes: int = MAX_PAGE_BYTES, request_id: str = ""
) -> Fetched:
    """What `url` answers, whatever its status: `ok`, status, final URL, declared type and bytes.

    Raises:
        MediaRefused: as `Fetcher.fetch`.
    """
    chosen = fetcher or Fetcher(FetchPolicy())
    return await chosen.fetch(url, max_bytes=max_bytes, request_id=request_id, success_only=False)
