"""`ingle serve`: one model or several behind the APIs that people's tools speak."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ingle import __version__
from ingle.cli.common import add_engine_arguments, load, model_name, open_text_model, size
from ingle.cli.keys import read_keys
from ingle.cli.media_flags import add_decode_arguments, add_fetch_arguments, media_config
from ingle.config import ApiKey, ServerConfig, is_loopback
from ingle.env import Environment
from ingle.errors import ConfigError
from ingle.weights.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from ingle.service.model_pool import ModelPool, OpenModel, Place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        default=[DEFAULT_MODEL],
        metavar="MODEL",
        help=f"one or several, as NAME=MODEL where clients know it by another name ({DEFAULT_MODEL})",
    )
    add_engine_arguments(parser)
    add_fetch_arguments(parser)
    add_decode_arguments(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=8400, help="port; 0 takes any free one (8400)")
    add("--name", help="the model's name for clients (default: from MODEL)")
    add(
        "--max-loaded",
        type=int,
        metavar="N",
        help="models in memory at once; each gets its part of --memory (all of them)",
    )
    add(
        "--idle-timeout",
        type=float,
        metavar="S",
        help="unload a model that nobody used for S seconds (never)",
    )
    add(
        "--pooling",
        choices=("mean", "last"),
        help="lets models make embeddings that do not say how (what the checkpoint says)",
    )
    add("--api-key-file", type=Path, metavar="FILE", help="see `ingle key`; or set INGLE_API_KEY")
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help="web pages that may ask (none)")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="names besides its address that a loopback server answers to (none)",
    )
    add("--responses-file", type=Path, metavar="FILE", help="where /v1/responses are kept (in memory)")
    add(
        "--responses-limit",
        type=size,
        default=size("64MiB"),
        metavar="SIZE",
        help="most that they take; the oldest go first (64MiB)",
    )
    add("--max-body-mb", type=float, default=32.0, metavar="MB", help="largest request body (32)")
    add(
        "--request-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="a request ends after S seconds (600)",
    )
    add(
        "--shutdown-timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="running requests may finish for S s (10)",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), default="warning", help="(warning)")
    add("--log-format", choices=("text", "json"), default="text", help="log lines, to stderr (text)")
    add("--log-prompts", action="store_true", help="log what is asked, at level info (never)")
    add("--otlp", metavar="URL", help="send OpenTelemetry spans there; needs the extra otel (no)")


def run(args: argparse.Namespace) -> int:
    config = ServerConfig(
        host=args.host,
        port=args.port,
        api_keys=_keys(args.api_key_file),
        cors_origins=tuple(args.cors_origin),
        allowed_hosts=tuple(args.allowed_host),
        responses_file=args.responses_file,
        responses_bytes=args.responses_limit,
        max_body_bytes=int(args.max_body_mb * 1024 * 1024),
        request_timeout_s=args.request_timeout,
        shutdown_timeout_s=args.shutdown_timeout,
        log_prompts=args.log_prompts,
    )
    media = media_config(args)
    from ingle.cli.logs import start_logging
    from ingle.server.app import create_app
    from ingle.server.run import Server
    from ingle.server.tracing import OpenTelemetryTracer, export_to

    start_logging(args.log_level, args.log_format)
    tracer = None
    if args.otlp is not None:
        export_to(args.otlp)
        tracer = OpenTelemetryTracer()
    pool = _pool(args)
    try:
        if not config.api_keys and not is_loopback(config.host):
            print(f"ingle: warning: {config.host} is open to others and no API key is set", file=sys.stderr)

        def ready(url: str) -> None:
            names = ", ".join(place.name for place in pool.places)
            about = " | ".join(map(_about, pool.places))
            print(f"Ingle {__version__} serves {names} at {url}/v1 ({about})", flush=True)

        Server(create_app(pool, config, media, tracer), config, ready).run_until_signal()
    finally:
        for place in pool.places:
            if place.opened is not None:
                place.opened.close()
    return 0


def _about(place: Place) -> str:
    if place.opened is None:
        return "not loaded"
    info = place.opened.model.engine.info
    return f"{info.backend}; {info.drafts}"


def _pool(args: argparse.Namespace) -> ModelPool:
    """All that fit are loaded at once: what cannot work fails at start."""
    from ingle.service.model_pool import ModelPool

    limit = len(args.models) if args.max_loaded is None else args.max_loaded
    if not 1 <= limit <= 64:
        raise ConfigError(f"max-loaded must be 1 to 64, got {limit}")
    several = len(args.models) > 1
    for flag in ("name", "drafter"):
        if several and getattr(args, flag) not in (None, "auto", "ngram", "none"):
            raise ConfigError(f"--{flag} says something of one model, {len(args.models)} are served")
    share = _share(args.memory, min(limit, len(args.models)))
    places = [_place(args, reference, share) for reference in args.models]
    names = [place.name for place in places]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called {twice!r}; give one another name: NAME=MODEL")
    for place in places[:limit]:
        place.opened = place.load()
    return ModelPool(places, limit=limit, idle_s=args.idle_timeout)


def _share(memory: int | None, models: int) -> int | None:
    """What each of so many models at once may take."""
    if models == 1:
        return memory
    from ingle.engine.memory import available_bytes

    free = available_bytes()
    total = memory if memory is not None or free is None else int(0.9 * free)
    return None if total is None else total // models


def _place(args: argparse.Namespace, reference: str, share: int | None) -> Place:
    from ingle.service.model_pool import OpenModel, Place

    given, between, model = reference.partition("=")
    if not between or not given or "/" in given:
        given, model = args.name, reference
    name = given or model_name(model, Path(model.rstrip("/")))

    def open_it() -> OpenModel:
        loaded = load(args, model, name=name, memory=share)
        return OpenModel(open_text_model(loaded, args.pooling), loaded.engine.close)

    return Place(name, open_it)


def _keys(file: Path | None) -> tuple[ApiKey, ...]:
    secret = Environment.read().api_key
    keys = () if secret is None else (ApiKey.of(secret, "INGLE_API_KEY"),)
    return keys if file is None else (*keys, *read_keys(file))
