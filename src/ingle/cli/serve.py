"""`ingle serve`: a model behind the OpenAI-compatible API."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from pathlib import Path

from ingle import __version__
from ingle.cli.common import add_model_arguments, load, open_text_model
from ingle.cli.media_flags import add_decode_arguments, add_fetch_arguments, media_config
from ingle.config import ServerConfig
from ingle.env import Environment
from ingle.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_fetch_arguments(parser)
    add_decode_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8400, help="port; 0 takes any free one (8400)")
    parser.add_argument("--name", help="the model's name for clients (default: from MODEL)")
    parser.add_argument("--api-key-file", metavar="FILE", help="one key a line; or set INGLE_API_KEY")
    parser.add_argument(
        "--max-body-mb", type=float, default=32.0, metavar="MB", help="largest request body (32)"
    )
    parser.add_argument(
        "--request-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="a request ends after S seconds (600)",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="running requests may finish for S s (10)",
    )


def run(args: argparse.Namespace) -> int:
    config = ServerConfig(
        host=args.host,
        port=args.port,
        api_keys=_keys(args.api_key_file),
        max_body_bytes=int(args.max_body_mb * 1024 * 1024),
        request_timeout_s=args.request_timeout,
        shutdown_timeout_s=args.shutdown_timeout,
    )
    media = media_config(args)
    from ingle.server.app import create_app
    from ingle.server.run import Server

    loaded = load(args)
    try:
        model = open_text_model(loaded)
        if not config.api_keys and not _is_loopback(config.host):
            print(f"ingle: warning: {config.host} is open to others and no API key is set", file=sys.stderr)

        def ready(url: str) -> None:
            info = loaded.engine.info
            about = f"{info.backend}; {info.drafts}"
            print(f"Ingle {__version__} serves {model.name} at {url}/v1 ({about})", flush=True)

        Server(create_app([model], config, media), config, ready).run_until_signal()
    finally:
        loaded.engine.close()
    return 0


def _keys(file: str | None) -> tuple[str, ...]:
    keys = [Environment.read().api_key]
    if file is not None:
        try:
            keys += [line.strip() for line in Path(file).read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys in {file}: {error}") from None
        if not any(keys):
            raise ConfigError(f"{file} holds no API key")
    return tuple(key for key in keys if key)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
