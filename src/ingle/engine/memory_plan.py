"""The memory of one engine: what it may take, what for, and whether that turned out true."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import mlx.core as mx

from ingle.cache.state import held_bytes, peak_bytes, reset_peak
from ingle.config import EngineConfig
from ingle.contracts.cache import KEY_BLOCK
from ingle.contracts.graph import ModelGraph
from ingle.contracts.request import Request
from ingle.engine.handle import EngineInfo
from ingle.engine.memory import RowMemory, available_bytes
from ingle.errors import ConfigError, InsufficientMemory
from ingle.speculative.policy import MAX_DRAFTS
from ingle.speculative.source import DraftSource

_log = logging.getLogger(__name__)

_MEDIA_CACHE = 256 * 2**20
_UNKNOWN = 1 << 40  # where the system does not say what is free, MLX's own limits hold


@dataclass(slots=True, eq=False)
class MemoryPlan:
    """Bytes, all of them."""

    total: int
    weights: int
    transients: int  # of the largest step
    prompt_cache: int
    media: int  # soft tokens kept for later prompts
    rows: RowMemory
    step_bytes: Callable[[int, int], int]  # `ModelGraph.step_bytes`
    window: int  # most prompt tokens of a step
    before: int  # what this process held before
    predicted: int = 0  # the most that any step so far was expected to hold
    peak: int = 0  # the most measured

    @classmethod
    def build(
        cls,
        build: Callable[[], ModelGraph],
        drafts: Callable[[ModelGraph], Sequence[DraftSource]] | None,
        config: EngineConfig,
        *,
        takes_media: bool = False,
    ) -> tuple[ModelGraph, Sequence[DraftSource], Self]:
        """Build the graph and what drafts for it, and see what is left beside them.

        Raises:
            ConfigError: not enough for one short sequence.
        """
        free, before = available_bytes(), held_bytes()
        graph = build()
        sources = () if drafts is None else drafts(graph)
        mx.clear_cache()
        reset_peak()
        total = config.memory_bytes
        if total is None:
            total = _UNKNOWN if free is None else int(0.9 * free)
        window = max(config.window_tokens, graph.whole_block)
        drafted = MAX_DRAFTS if sources else 0
        transients = graph.step_bytes(window + config.max_rows + drafted, config.max_rows + drafted)
        transients = max([transients, *(source.step_bytes(config.max_rows) for source in sources)])
        plan = cls(
            total=total,
            weights=held_bytes() - before,
            transients=transients,
            prompt_cache=0,
            media=0,
            rows=RowMemory(graph.layout, tuple([layout for source in sources for layout in source.layouts])),
            step_bytes=graph.step_bytes,
            window=window,
            before=before,
        )
        if takes_media:
            wanted = config.media_cache_bytes
            plan.media = max(0, min(_MEDIA_CACHE, plan.kv // 8)) if wanted is None else wanted
        wanted = config.prompt_cache_bytes
        plan.prompt_cache = plan.kv // 2 if wanted is None else wanted
        if plan.fitting(KEY_BLOCK) < KEY_BLOCK:
            needed = plan.weights + transients + plan.media + plan.row_bytes(KEY_BLOCK)
            raise ConfigError(
                f"memory is {_mib(total)}, the model needs {_mib(needed)} to answer at all: weights "
                f"{_mib(plan.weights)}, a step {_mib(transients)}, KV of {KEY_BLOCK} tokens "
                f"{_mib(plan.row_bytes(KEY_BLOCK))} (--memory)"
            )
        return graph, sources, plan

    @property
    def kv(self) -> int:
        """What rows and prompt cache may take together."""
        return self.total - self.weights - self.transients - self.media

    def row_bytes(self, tokens: int) -> int:
        """The most that the state of one row takes until it has `tokens`."""
        return self.rows.most(tokens, self.window)

    def fitting(self, limit: int) -> int:
        """The most tokens, up to `limit`, whose state fits when nothing else is there."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.row_bytes(middle) <= self.kv:
                low = middle
            else:
                high = middle - 1
        return low

    def limit(self, info: EngineInfo) -> EngineInfo:
        """What the engine says of itself, once its memory is known."""
        fitting = self.fitting(info.context_length)
        return info if fitting == info.context_length else replace(info, fitting_tokens=fitting)

    def check(self, request: Request, fitting: int | None) -> None:
        """Raises InsufficientMemory: the request could never run, however long it waited."""
        prompt, more = len(request.prompt), request.sampling.max_tokens
        if fitting is not None and prompt + more > fitting:
            needed = self.row_bytes(prompt + more)
            raise InsufficientMemory(
                f"{prompt} prompt tokens and max_tokens {more} need {_mib(needed)} of KV, {_mib(self.kv)} "
                f"are available ({fitting} tokens); ask for less or start with more memory (--memory)",
                param="max_tokens",
            )

    def expect(self, kv: int, *, tokens: int, rows: int) -> None:
        """A step of `tokens` tokens, `rows` of which get logits, follows; KV will then hold `kv`."""
        self.predicted = max(self.predicted, self.weights + self.media + kv + self.step_bytes(tokens, rows))

    def note_peak(self) -> None:
        """Log the prediction beside the measurement whenever there is a new peak."""
        peak = peak_bytes() - self.before
        if peak > self.peak:
            self.peak = peak
            _log.info("memory: predicted %s, measured %s at most", _mib(self.predicted), _mib(peak))


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
