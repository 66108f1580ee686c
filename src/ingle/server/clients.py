"""Who may ask, and how much: API keys, of which only digests are kept, and each key's limits."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingle.config import ApiKey
from ingle.errors import RateLimited


@dataclass(slots=True)
class _Use:
    running: int = 0
    tokens: float = 0.0  # that may still be used; below 0: used ahead of time
    updated: float = 0.0


class Clients:
    """Of one server; used on its event loop. `clock` gives seconds that never go back."""

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._clock = keys, clock
        now = clock()
        self._use = {key.digest: _Use(tokens=float(key.tokens_per_minute or 0), updated=now) for key in keys}

    @property
    def asked(self) -> bool:
        """Keys are asked for at all."""
        return bool(self._keys)

    def find(self, secret: str) -> ApiKey | None:
        """The key, compared in constant time with every one there is."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        matches = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        return matches[0] if matches else None

    def enter(self, key: ApiKey) -> None:
        """A request of this key begins.

        Raises:
            RateLimited: it has too many under way, or used too many tokens.
        """
        use = self._filled(key)
        if key.max_concurrent is not None and use.running >= key.max_concurrent:
            raise RateLimited(
                f"key {key.name!r} has {use.running} requests under way, its limit is {key.max_concurrent}",
                retry_after_s=1,
            )
        if key.tokens_per_minute is not None and use.tokens <= 0:
            wait = math.ceil((1 - use.tokens) * 60 / key.tokens_per_minute)
            raise RateLimited(
                f"key {key.name!r} used its {key.tokens_per_minute} tokens a minute; "
                f"there are new ones in {wait} s",
                retry_after_s=wait,
            )
        use.running += 1

    def leave(self, key: ApiKey) -> None:
        self._use[key.digest].running -= 1

    def charge(self, client: bytes, tokens: int) -> None:
        """`client`, a key's digest, used so many tokens."""
        key = next((key for key in self._keys if key.digest == client), None)
        if key is not None and key.tokens_per_minute is not None:
            self._filled(key).tokens -= tokens

    def _filled(self, key: ApiKey) -> _Use:
        """A bucket that holds one minute's tokens and fills steadily."""
        use, now = self._use[key.digest], self._clock()
        if key.tokens_per_minute is not None:
            more = (now - use.updated) * key.tokens_per_minute / 60
            use.tokens = min(float(key.tokens_per_minute), use.tokens + more)
        use.updated = now
        return use
