"""The `ingle` command: pick a subcommand, import only that one, turn errors into plain messages."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ingle import __version__
from ingle.env import Environment
from ingle.errors import ConfigError, IngleError

_COMMANDS = {
    "chat": "talk to a model in this terminal",
    "serve": "answer OpenAI-compatible requests over HTTP",
    "key": "make an API key",
    "pull": "fetch a model before it is needed",
    "models": "list models that Ingle knows and has",
    "fit": "say whether a model and a context fit this machine's memory",
    "bench": "measure prompt and decode speed",
    "check-url": "say whether the server would fetch an address, and why not",
    "inspect": "decode media files as the server would and show what comes out",
    "doctor": "show what this machine offers and what is missing",
}
_EPILOG = """\
MODEL is a catalog name (see 'ingle models'), a .gguf file, a model folder, or a hub repository
(org/name). Without one, the small default model is used. 'ingle COMMAND --help' says more.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="ingle",
        description="A local LLM engine and server.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ingle {__version__}")
    parser.add_argument("--verbose", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in given if word in _COMMANDS), None)
    for name, about in _COMMANDS.items():
        sub = commands.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".")
        if name == chosen:  # only the chosen command's module is imported: help stays quick
            _module(name).add_arguments(sub)
    args = parser.parse_args(given)
    verbose: bool = args.verbose
    try:
        verbose = verbose or Environment.read().verbose
        return _module(args.command).run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return 1
    except IngleError as error:
        if verbose:
            raise
        print(f"ingle: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _module(command: str) -> Any:
    file = {"key": "keys"}.get(command, command.replace("-", "_"))
    return importlib.import_module(f"ingle.cli.{file}")
