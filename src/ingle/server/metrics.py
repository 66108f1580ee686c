"""Prometheus metrics of one server: what it answered, and what its engines report."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingle.contracts.engine_stats import EngineStats
from ingle.service.model_pool import ModelPool

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_GAPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    def __init__(self, pool: ModelPool) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ingle_http_requests", "Answered HTTP requests", ["route", "status"], registry=self.registry
        )
        self.ignored_fields = Counter(
            "ingle_ignored_fields", "Request fields that no API version knows", registry=self.registry
        )
        self.first_token = Histogram(
            "ingle_time_to_first_token_seconds",
            "From the request's arrival to its first text",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "ingle_inter_token_latency_seconds",
            "Between two texts of one request",
            buckets=_GAPS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "ingle_e2e_request_latency_seconds",
            "From the request's arrival to its last byte",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.media = _MediaMetrics(self.registry)
        self.registry.register(_EngineCollector(pool))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _MediaMetrics:
    """Implements `MediaObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = Counter(
            "ingle_media_results", "Ended fetches and decodings", ["step", "result"], registry=registry
        )
        self._phases = Histogram(
            "ingle_media_phase_seconds",
            "Time in fetch, resolve, answer and decode",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )

    def result(self, step: str, result: str) -> None:
        self._results.labels(step, result).inc()

    def phase(self, name: str, seconds: float) -> None:
        self._phases.labels(name).observe(seconds)


class _EngineCollector(Collector):
    """Reads the engines' own counters at the moment of a scrape."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for model in self._pool.loaded:
            stats = model.engine.stats()
            drafts = "ingle_drafter_info", "What proposes drafts", {"drafter": model.engine.info.drafts}, 1.0
            for name, about, labels, value in (*_samples(stats), drafts):
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families.get(name)
                if family is None:
                    family = families[name] = kind(
                        name.removesuffix("_total"), about, labels=["model", *labels]
                    )
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric([model.name, *labels.values()], value)
        yield from families.values()


def _samples(s: EngineStats) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """(name, meaning, labels, value); names are vLLM's, with our prefix, where they mean the same."""
    none: dict[str, str] = {}
    yield "ingle_num_requests_waiting", "Requests without a row, paused ones included", none, s.waiting
    yield "ingle_num_requests_running", "Rows in prefill or decode", none, s.running
    yield "ingle_num_preemptions_total", "Rows paused because memory was short", none, s.paused
    yield "ingle_prompt_tokens_total", "Computed prompt tokens", none, s.prompt_tokens
    yield "ingle_generation_tokens_total", "Generated tokens", none, s.generated_tokens
    yield "ingle_prefix_cache_queries_total", "Tokens the prompt cache was asked for", none, s.queried_tokens
    yield "ingle_prefix_cache_hits_total", "Tokens whose KV it had", none, s.cached_tokens
    yield "ingle_prefix_cache_hit_bytes_total", "KV that it had", none, s.cached_bytes
    yield "ingle_prefix_cache_bytes", "KV in the prompt cache", none, s.prompt_cache_bytes
    yield "ingle_kv_cache_bytes", "KV of rows that the prompt cache does not hold", none, s.kv_bytes
    used = (s.kv_bytes + s.prompt_cache_bytes) / max(1, s.kv_limit_bytes)
    yield "ingle_kv_cache_usage_perc", "Share of the memory for KV in use, 0 to 1", none, used
    yield "ingle_kv_cache_limit_bytes", "Memory for KV", none, s.kv_limit_bytes
    yield "ingle_weights_bytes", "Memory of weights", none, s.weights_bytes
    yield "ingle_memory_predicted_bytes", "Highest prediction for a step", none, s.predicted_bytes
    yield "ingle_memory_peak_bytes", "Highest measurement", none, s.peak_bytes
    yield "ingle_encoded_media_total", "Pictures, frames and sounds encoded", none, s.encoded_media
    yield "ingle_media_cache_hits_total", "Those that the media cache had", none, s.media_cache_hits
    yield "ingle_media_cache_bytes", "Soft tokens in the media cache", none, s.media_cache_bytes
    yield "ingle_spec_decode_num_draft_tokens_total", "Drafts that were verified", none, s.drafted_tokens
    yield "ingle_spec_decode_num_accepted_tokens_total", "Drafts that were right", none, s.accepted_tokens
    yield "ingle_spec_decode_seconds_total", "Time spent drafting", none, s.drafting_seconds
    yield "ingle_spec_decode_failures_total", "Steps without drafts, by an error", none, s.failed_drafts
    yield "ingle_grammar_masks_total", "Token masks of grammars", none, s.grammar_masks
    yield "ingle_grammar_mask_seconds_total", "Time spent on them", none, s.grammar_seconds
    yield "ingle_admission_delays_total", "Steps in which the next request waited for memory", none, s.delayed
    yield "ingle_engine_failed_steps_total", "Steps that raised", none, s.failed_steps
    yield "ingle_engine_alive", "1 while the engine thread runs", none, float(s.alive)
    yield "ingle_engine_step_age_seconds", "How long the step in progress runs", none, s.last_step_age_s
    for phase, count in s.steps.items():
        yield "ingle_engine_steps_total", "Steps, by what they computed", {"phase": phase}, count
    for phase, seconds in s.step_seconds.items():
        yield "ingle_engine_step_seconds_total", "Time in steps", {"phase": phase}, seconds
    for reason, count in s.finished.items():
        yield "ingle_request_success_total", "Ended requests", {"finished_reason": reason}, count
