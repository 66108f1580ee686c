"""Prometheus metrics of one server: what it answered, and what its engines report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingle.service.models import TextModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self, models: Sequence[TextModel]) -> None:
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
        self.duration = Histogram(
            "ingle_request_duration_seconds",
            "From the request's arrival to its last byte",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(models))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Reads the engines' own counters at the moment of a scrape."""

    def __init__(self, models: Sequence[TextModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        label = ["model"]
        waiting = GaugeMetricFamily("ingle_requests_waiting", "Requests without a row", labels=label)
        running = GaugeMetricFamily("ingle_requests_running", "Rows in prefill or decode", labels=label)
        kv = GaugeMetricFamily("ingle_kv_bytes", "Bytes of keys and values", labels=label)
        alive = GaugeMetricFamily("ingle_engine_alive", "1 while the engine thread runs", labels=label)
        steps = CounterMetricFamily("ingle_engine_steps", "Engine steps", labels=label)
        seconds = CounterMetricFamily("ingle_step_seconds", "Time in forward and sampling", labels=label)
        prompt = CounterMetricFamily("ingle_prompt_tokens", "Computed prompt tokens", labels=label)
        generated = CounterMetricFamily("ingle_generated_tokens", "Generated tokens", labels=label)
        finished = CounterMetricFamily("ingle_requests_finished", "Ended requests", labels=[*label, "reason"])
        for model in self._models:
            stats, name = model.engine.stats(), [model.name]
            waiting.add_metric(name, stats.waiting)
            running.add_metric(name, stats.running)
            kv.add_metric(name, stats.kv_bytes)
            alive.add_metric(name, float(stats.alive))
            steps.add_metric(name, stats.steps)
            seconds.add_metric(name, stats.step_seconds)
            prompt.add_metric(name, stats.prompt_tokens)
            generated.add_metric(name, stats.generated_tokens)
            for reason, count in stats.finished.items():
                finished.add_metric([*name, reason], count)
        yield from (waiting, running, kv, alive, steps, seconds, prompt, generated, finished)
