"""Flags that say which media a request may bring, for every command that takes some."""

from __future__ import annotations

import argparse
from ipaddress import ip_network
from pathlib import Path

from ingle.config import FetchPolicy, MediaConfig, Network
from ingle.errors import ConfigError


def add_fetch_arguments(parser: argparse.ArgumentParser) -> None:
    """Which addresses are fetched."""
    group = parser.add_argument_group("fetching media by address")
    group.add_argument(
        "--url-fetch",
        choices=("off", "allowlist", "public"),
        default="public",
        help="off: inline data only; allowlist: listed hosts only (public)",
    )
    group.add_argument(
        "--allow-domain",
        action="append",
        default=[],
        metavar="NAME",
        help="a host for the allowlist; .NAME means everything below it; may be repeated",
    )
    group.add_argument(
        "--allow-network", action="append", default=[], metavar="CIDR", help="fetch from it although private"
    )
    group.add_argument(
        "--deny-network", action="append", default=[], metavar="CIDR", help="never fetch from it"
    )
    group.add_argument(
        "--allow-port", action="append", type=int, default=[], metavar="N", help="only these ports"
    )
    group.add_argument(
        "--allow-private",
        action="store_true",
        help="fetch from loopback and private networks too; cloud metadata stays closed",
    )
    group.add_argument("--allow-nat64", action="store_true", help="judge 64:ff9b::/96 by the address inside")
    group.add_argument(
        "--private-hint", metavar="TEXT", help="told to clients whose private address is refused"
    )
    group.add_argument(
        "--media-root", type=Path, metavar="DIR", help="file: URLs below DIR are read (none are)"
    )


def fetch_policy(args: argparse.Namespace) -> FetchPolicy:
    """Raises ConfigError: a flag is out of range, or contradicts another."""
    return FetchPolicy(
        url_fetch=args.url_fetch,
        allowed_domains=tuple(args.allow_domain),
        allowed_networks=tuple(_network(text) for text in args.allow_network),
        denied_networks=tuple(_network(text) for text in args.deny_network),
        allowed_ports=tuple(args.allow_port) or None,
        allow_private=args.allow_private,
        allow_nat64=args.allow_nat64,
        private_hint=args.private_hint,
        media_root=args.media_root,
    )


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """What decoding may take."""
    defaults = MediaConfig()
    group = parser.add_argument_group("decoding media")
    for flag, name, about in (
        ("--max-media", "max_items", "pieces of media in one request"),
        ("--max-media-tokens", "max_soft_tokens", "soft tokens of all media in one request"),
        ("--max-pixels", "max_pixels", "pixels of a picture"),
        ("--media-workers", "workers", "decoding processes"),
    ):
        default = getattr(defaults, name)
        group.add_argument(
            flag, dest=name, type=int, default=default, metavar="N", help=f"{about} ({default})"
        )
    group.add_argument(
        "--media-timeout",
        dest="media_timeout_s",
        type=float,
        default=defaults.timeout_s,
        metavar="S",
        help=f"fetching and decoding all media of a request ({defaults.timeout_s:g})",
    )
    group.add_argument(
        "--fast-jpeg", action="store_true", help="decode large JPEGs at a reduced scale: quicker, not exact"
    )


def media_config(args: argparse.Namespace) -> MediaConfig:
    """Raises ConfigError: a flag is out of range."""
    return MediaConfig(
        fetch=fetch_policy(args),
        max_items=args.max_items,
        max_soft_tokens=args.max_soft_tokens,
        max_pixels=args.max_pixels,
        workers=args.workers,
        timeout_s=args.media_timeout_s,
        fast_jpeg=args.fast_jpeg,
    )


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no network: {error}") from None
