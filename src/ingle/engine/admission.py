"""Who may take memory: starts rows on what the prompt cache has, counts, and says when it does not fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ingle.cache.persistence import BlockFiles
from ingle.contracts.cache import KEY_BLOCK, RowState
from ingle.engine.memory import RowMemory
from ingle.engine.prompt_cache import BlockKey, PromptCache, block_key
from ingle.engine.rows import Row

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class AdmissionCounters:
    """Only grow; written by the engine thread."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    hit_bytes: int = 0
    delayed: int = 0  # times that the first row of the queue had to wait for memory


class Admission:
    """KV of all rows and of the prompt cache stays within `kv_bytes`. Used by the engine thread alone."""

    def __init__(
        self, memory: RowMemory, kv_bytes: int, cache_bytes: int, files: BlockFiles | None = None
    ) -> None:
        self.memory, self.kv_bytes = memory, kv_bytes
        self.cache = PromptCache(memory.layout, min(cache_bytes, kv_bytes), files)
        self.counters = AdmissionCounters()

    def start(self, row: Row, running: list[Row], make_state: Callable[[int], RowState]) -> bool:
        """Give a row its state, with what the cache has of it. False: its KV does not fit beside `running`.

        Room is kept for one more block of every running row, so that a new row does not push out an old one
        at once.
        """
        lease, hit = None, None
        if row.request.cache_key is not None:
            keys = self._keys(row, (row.known - 1) // KEY_BLOCK)
            lease, hit = self.cache.match(row.request.cache_key, keys, row.request.content)
        shared = 0 if hit is None else hit.length
        needed = self.memory.growth(shared, row.known - shared) + self.memory.growth(0, 1) * len(running)
        if not self.fits(needed, running):
            if lease is not None:
                self.cache.release(lease)
            self.counters.delayed += 1
            return False
        row.lease = lease
        row.state = make_state(1)
        if hit is not None:
            row.state.adopt(hit.length, hit.blocks, hit.carried)
            row.computed = hit.length
            self.counters.hit_bytes += sum(block.nbytes for blocks in hit.blocks for block in blocks)
        self.counters.queried_tokens += row.known
        self.counters.hit_tokens += shared
        _log.debug("request %s starts: %d of %d tokens cached", row.id, shared, row.known)
        return True

    def publish(self, row: Row, state: RowState, number: int) -> None:
        """Offer the whole blocks of row `number` of `state`, all of whose positions are computed."""
        if row.lease is not None and state.lengths[number] // KEY_BLOCK > row.lease.blocks:
            keys = self._keys(row, state.lengths[number] // KEY_BLOCK)
            self.cache.publish(row.lease, keys, state, number, known=row.known)

    def leave(self, row: Row) -> None:
        """The row gives up its memory."""
        if row.lease is not None:
            self.cache.release(row.lease)
            row.lease = None

    def used(self, running: list[Row]) -> int:
        """Bytes of KV now."""
        return self.cache.nbytes + sum(
            self.memory.own(row.computed, 0 if row.lease is None else row.lease.blocks) for row in running
        )

    def growth(self, row: Row, tokens: int) -> int:
        return self.memory.growth(row.computed, tokens)

    def fits(self, needed: int, running: list[Row]) -> bool:
        """Whether `needed` more bytes fit. Lets go of cached blocks that nobody holds, if need be."""
        short = self.used(running) + needed - self.kv_bytes
        if short > self.cache.nbytes:
            return False  # to empty the cache would not help
        return short <= 0 or self.cache.shrink(short) >= short

    def _keys(self, row: Row, count: int) -> list[BlockKey]:
        for number in range(len(row.keys), count):
            tokens = tuple(row.tokens(number * KEY_BLOCK, KEY_BLOCK))
            row.keys.append(block_key(tokens, number, row.request.content))
        return row.keys[:count]
