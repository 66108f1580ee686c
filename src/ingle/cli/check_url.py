"""`ingle check-url`: what the fetcher's static gates say to a URL. Touches no network."""

from __future__ import annotations

import argparse
import json

from ingle.cli.media_flags import add_fetch_arguments, fetch_policy
from ingle.config import FetchPolicy
from ingle.errors import MediaRefused
from ingle.media.url import parse_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_fetch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    policy = fetch_policy(args)
    for url in args.urls:
        allowed, reason = verdict(url, policy)
        word = "allow" if allowed else "reject"
        if args.json:
            print(json.dumps({"url": url, "verdict": word, "reason": reason}))
        else:
            print(f"{word:6}  {ascii(url)[1:-1]}  ({reason})")
    return 0


def verdict(url: str, policy: FetchPolicy) -> tuple[bool, str]:
    """What can be said without the network: the name's addresses are judged when it is fetched."""
    try:
        target = parse_target(url, policy)
    except MediaRefused as error:
        return False, error.detail
    if target.address is not None:
        return True, f"{target.address} is public"
    return True, f"{target.host} is a public name; its addresses are judged when it is resolved"
