"""What an engine counts of itself, and how that is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ingle.contracts.engine_stats import EngineStats
from ingle.engine.features import FeatureCounters
from ingle.engine.memory_plan import MemoryPlan
from ingle.engine.residents import Residents
from ingle.engine.runner import GrammarCounters
from ingle.engine.speculation import Speculation, SpeculationCounters


@dataclass(slots=True)
class Counters:
    """Written by the engine thread, read by anybody: single numbers, so no lock."""

    steps: dict[str, int] = field(default_factory=dict[str, int])
    step_seconds: dict[str, float] = field(default_factory=dict[str, float])
    prompt_tokens: int = 0
    generated_tokens: int = 0
    failed_steps: int = 0
    running: int = 0
    kv_bytes: int = 0
    busy_since: float | None = None  # monotonic start of the step in progress
    finished: dict[str, int] = field(default_factory=dict[str, int])


def engine_stats(
    counters: Counters,
    rows: Residents,
    memory: MemoryPlan,
    features: FeatureCounters,
    speculation: Speculation | None,
    grammars: GrammarCounters,
    *,
    live: int,
    alive: bool,
) -> EngineStats:
    """At this moment; from any thread. `live`: requests that were accepted and have not ended."""
    c, admission, busy = counters, rows.admission, counters.busy_since
    drafts = SpeculationCounters() if speculation is None else speculation.counters
    return EngineStats(
        waiting=max(0, live - c.running),
        running=c.running,
        steps=dict(c.steps),
        step_seconds=dict(c.step_seconds),
        prompt_tokens=c.prompt_tokens,
        cached_tokens=admission.counters.hit_tokens,
        queried_tokens=admission.counters.queried_tokens,
        cached_bytes=admission.counters.hit_bytes,
        generated_tokens=c.generated_tokens,
        finished=dict(c.finished),
        delayed=admission.counters.delayed,
        paused=rows.paused,
        failed_steps=c.failed_steps,
        kv_bytes=c.kv_bytes,
        prompt_cache_bytes=admission.cache.nbytes,
        kv_limit_bytes=admission.kv_bytes,
        weights_bytes=memory.weights,
        predicted_bytes=memory.predicted,
        encoded_media=features.encoded,
        media_cache_hits=features.hits,
        media_cache_bytes=features.nbytes,
        drafted_tokens=drafts.drafted,
        accepted_tokens=drafts.accepted,
        drafting_seconds=drafts.seconds,
        failed_drafts=drafts.failures,
        grammar_masks=grammars.masks,
        grammar_seconds=grammars.seconds,
        peak_bytes=memory.peak,
        alive=alive,
        last_step_age_s=0.0 if busy is None else time.monotonic() - busy,
    )
