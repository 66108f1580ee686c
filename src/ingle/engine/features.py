"""What pictures, frames and sounds became, kept for the next prompt that holds them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.media import Block


@dataclass(slots=True)
class FeatureCounters:
    """Only grow, but for `nbytes`; written by the engine thread."""

    encoded: int = 0
    hits: int = 0
    nbytes: int = 0


class FeatureCache:
    """Soft tokens by the digest of what they stand for. Holds at most `max_bytes`, the oldest go first.

    Used by the engine thread alone. An encoder sees one block at a time, so its result depends on nothing
    but the block.
    """

    def __init__(self, encode: Callable[[Block], mx.array], max_bytes: int) -> None:
        self._encode, self._max_bytes = encode, max_bytes
        self._kept: OrderedDict[bytes, mx.array] = OrderedDict()
        self.counters = FeatureCounters()

    def get(self, block: Block) -> mx.array:
        """[block.soft_tokens, hidden]"""
        known = self._kept.get(block.digest)
        if known is not None:
            self._kept.move_to_end(block.digest)
            self.counters.hits += 1
            return known
        features = self._encode(block)
        self.counters.encoded += 1
        if features.nbytes <= self._max_bytes:
            self._kept[block.digest] = features
            self.counters.nbytes += features.nbytes
            while self.counters.nbytes > self._max_bytes:
                self.counters.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return features

    def clear(self) -> None:
        self._kept.clear()
        self.counters.nbytes = 0
