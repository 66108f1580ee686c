"""The decode batch: which rows share the batched KV, changed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import LayerCache
from ingle.contracts.state import StagedChange
from ingle.engine.rows import Row


class DecodeBatch:
    """Rows whose prompt is computed. Row i of every layer cache belongs to `rows[i]`."""

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = ()
        self.caches: list[LayerCache] = []

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def stage(self, keep: Sequence[Row], joining: Sequence[Row]) -> StagedChange:
        """The batch of `keep` (members, any order) followed by `joining` (rows with own caches).

        Everything that can fail happens here: the new caches are built and evaluated.
        """
        numbers = [self.rows.index(row) for row in keep]
        rows = (*keep, *joining)
        own = [row.caches for row in joining]
        assert all(caches is not None for caches in own), "a joining row brings its KV"
        joined = [caches for caches in own if caches is not None]
        caches: list[LayerCache] = []
        if self.caches and keep:
            for layer, cache in enumerate(self.caches):
                caches.append(cache.select(numbers, [c[layer] for c in joined]))
        elif joined:
            first, *others = joined
            caches = [c.select(range(c.rows), [o[i] for o in others]) for i, c in enumerate(first)]
        mx.eval([cache.state for cache in caches])

        def publish() -> None:
            self.rows, self.caches = rows, caches
            for row in joining:
                row.caches = None

        return StagedChange(publish)

    def drop(self) -> None:
        """Forget all members and their KV."""
        self.rows, self.caches = (), []
