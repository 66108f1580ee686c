"""API keys in a file, one a line; and `ingle key`, which makes one.

A line is `NAME sha256:DIGEST [concurrent=N] [tokens_per_minute=N]`, or a bare key. Blank lines and what
follows `#` count for nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import secrets
from dataclasses import replace
from pathlib import Path

from ingle.config import ApiKey
from ingle.errors import ConfigError

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LIMITS = {"concurrent": "max_concurrent", "tokens_per_minute": "tokens_per_minute"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="key", metavar="NAME", help="for messages and logs (key)")


def run(args: argparse.Namespace) -> int:
    if re.fullmatch(r"[\w.@-]{1,64}", args.name) is None:
        raise ConfigError(f"{args.name!r} is no name of a key: up to 64 letters, digits and . _ @ -")
    secret = "ingle-" + secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    print(f"for the client (it is shown this once):  {secret}")
    print(f"for the file of --api-key-file:          {args.name} sha256:{digest}")
    return 0


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """Raises ConfigError: the file cannot be read, holds no key, or a line is none; names the line."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API keys in {file}: {error}") from None
    keys = [
        _key(words, f"{file}, line {number}")
        for number, line in enumerate(lines, 1)
        if (words := line.partition("#")[0].split())
    ]
    if not keys:
        raise ConfigError(f"{file} holds no API key")
    return tuple(keys)


def _key(words: list[str], where: str) -> ApiKey:
    if len(words) == 1 and _DIGEST.fullmatch(words[0]) is None:
        return ApiKey.of(words[0], where)
    name = where if _DIGEST.fullmatch(words[0]) else words.pop(0)
    found = _DIGEST.fullmatch(words[0])
    if found is None:
        raise ConfigError(f"{where}: expected 'NAME sha256:DIGEST', and behind it perhaps limits")
    key = ApiKey(digest=bytes.fromhex(found[1]), name=name)
    for word in words[1:]:
        field, _, value = word.partition("=")
        if field not in _LIMITS or not value.isdecimal():
            raise ConfigError(f"{where}: {word!r} is no limit; known: concurrent=N, tokens_per_minute=N")
        key = replace(key, **{_LIMITS[field]: int(value)})
    return key
