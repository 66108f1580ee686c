"""OpenTelemetry spans of generations, by the names of its GenAI conventions. They need the extra `otel`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ingle.errors import ConfigError
from ingle.service.generation import Generation


class Span(Protocol):
    def finish(self, reasons: list[str]) -> None:
        """The answer ended, each choice for its reason."""
        ...


class Tracer(Protocol):
    def span(self, generation: Generation, headers: Mapping[str, str]) -> Any:
        """A context manager that gives a `Span`; it ends with the answer."""
        ...


class _Nothing:
    def finish(self, reasons: list[str]) -> None:
        pass


class NoTracer:
    @contextmanager
    def span(self, generation: Generation, headers: Mapping[str, str]) -> Generator[Span]:
        yield _Nothing()


class OpenTelemetryTracer:
    """Spans go to the provider that is set, by the program or by `export_to`.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ConfigError("traces need the extra: pip install 'ingle[otel]'") from None
        self._propagate, self._trace = propagate, trace
        self._tracer = trace.get_tracer("ingle")

    @contextmanager
    def span(self, generation: Generation, headers: Mapping[str, str]) -> Generator[Span]:
        name, options = generation.model.name, generation.options
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": generation.operation,
            "gen_ai.provider.name": "ingle",
            "gen_ai.request.model": name,
            "gen_ai.response.model": name,
            "gen_ai.request.choice.count": options.n,
        }
        if options.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = options.max_tokens
        if options.seed is not None:
            attributes["gen_ai.request.seed"] = options.seed
        for field in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
            if field in options.sampling:
                attributes[f"gen_ai.request.{field}"] = options.sampling[field]
        with self._tracer.start_as_current_span(
            f"{generation.operation} {name}",
            context=self._propagate.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes,
        ) as span:
            try:
                yield _Finish(span)
            finally:
                span.set_attribute("gen_ai.usage.input_tokens", generation.usage.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", generation.usage.completion_tokens)


class _Finish:
    def __init__(self, span: Any) -> None:
        self._span = span

    def finish(self, reasons: list[str]) -> None:
        self._span.set_attribute("gen_ai.response.finish_reasons", reasons)


def export_to(endpoint: str) -> None:
    """Send spans to a collector by OTLP over HTTP.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("traces need the extra: pip install 'ingle[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "ingle"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
