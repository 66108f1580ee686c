"""`ingle inspect`: decode files in the sandbox, as the server would, and say what came out."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from ingle.cli.media_flags import add_decode_arguments, add_fetch_arguments, media_config
from ingle.config import MediaConfig
from ingle.errors import MediaRefused
from ingle.media.sandbox.pool import Sandbox
from ingle.media.settings import inspect_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_decode_arguments(parser)
    add_fetch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    config = media_config(args)
    asyncio.run(_inspect(args.files, config, as_json=args.json))
    return 0


async def _inspect(files: list[Path], config: MediaConfig, *, as_json: bool) -> None:
    sandbox = Sandbox(config)
    try:
        for file in files:
            result = {"file": str(file), **await _one(file, sandbox, config)}
            print(json.dumps(result) if as_json else _readable(result), flush=True)
    finally:
        sandbox.close()


async def _one(file: Path, sandbox: Sandbox, config: MediaConfig) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise MediaRefused("not a regular file", code="media_unreadable")
        if size > config.fetch.max_video_bytes:
            raise MediaRefused(
                f"the file has {size} bytes, the limit is {config.fetch.max_video_bytes}",
                code="media_too_large",
            )
        data = file.read_bytes()
        decoded = await sandbox.run("inspect", data, inspect_options(config))
    except OSError as error:
        return {"refused": f"cannot be read: {error.strerror}", "code": "media_unreadable"}
    except MediaRefused as error:
        return {"refused": error.message, "code": error.code}
    return decoded.info


def _readable(result: dict[str, Any]) -> str:
    name = result.pop("file")
    if "refused" in result:
        return f"{name}: refused: {result['refused']}"
    facts = ", ".join(f"{key} {value}" for key, value in result.items() if key != "kind")
    return f"{name}: {result['kind']}, {facts}"
