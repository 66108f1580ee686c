"""May this address be dialled? Our own table, because the standard library's changes between patches.

Public means: nobody can use the server to reach something that only the server can reach. Facts from
the IANA special-purpose registries; addresses that carry an IPv4 address inside are judged by it or
refused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

from ingle.config import FetchPolicy, Network

Address: TypeAlias = IPv4Address | IPv6Address

# What `allow_private` opens.
_PRIVATE: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), why)
    for text, why in (
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("::1/128", "loopback"),
        ("fc00::/7", "unique local"),
    )
)
# What nothing opens: clouds answer there with the machine's own credentials.
_METADATA: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), "cloud metadata")
    for text in (
        "169.254.0.0/16",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
        "fd00:ec2::/32",
        "fd00:c1::a9fe:a9fe/128",
        "fd20:ce::254/128",
    )
)
_RESERVED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), why)
    for text, why in (
        ("0.0.0.0/8", "this host"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("2001::/23", "protocol assignments, Teredo among them"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
        ("3ffe::/16", "6bone"),
    )
)
_GLOBAL_UNICAST = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`address` is what to dial if `allowed`: an IPv4-mapped address has become an IPv4 one."""

    address: Address
    allowed: bool
    reason: str
    private: bool = False  # refused, and `allow_private` would open it


def is_own(address: Address) -> bool:
    """Does this machine have the address? Only then can a socket be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def judge(address: Address, policy: FetchPolicy, own: Callable[[Address], bool] | None = None) -> Verdict:
    """The verdict on one literal address, zone ids excluded.

    `own` says whether the machine has an address; None leaves that question out.
    """
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return judge(address.ipv4_mapped, policy, own)
    for network, why in _METADATA:
        if address in network:
            return Verdict(address, False, why)
    if any(address in network for network in policy.denied_networks):
        return Verdict(address, False, "in denied_networks")
    if any(address in network for network in policy.allowed_networks):
        return Verdict(address, True, "in allowed_networks")
    for network, why in _PRIVATE:
        if address in network:
            allowed = policy.allow_private
            return Verdict(address, allowed, why, private=not allowed)
    if isinstance(address, IPv6Address) and (inner := _embedded(address, policy)) is not None:
        verdict = judge(inner, policy, own)
        if not verdict.allowed:
            return Verdict(address, False, f"carries {inner}: {verdict.reason}", verdict.private)
    elif isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return Verdict(address, False, "not global unicast")
    for network, why in _RESERVED:
        if address in network:
            return Verdict(address, False, why)
    if own is not None and own(address):
        allowed = policy.allow_private
        return Verdict(address, allowed, "this machine's own address", private=not allowed)
    return Verdict(address, True, "public")


def _embedded(address: IPv6Address, policy: FetchPolicy) -> IPv4Address | None:
    """The IPv4 address inside an ISATAP interface id (RFC 5214), or behind NAT64 (RFC 6052) if allowed."""
    number = int(address)
    interface = (number >> 32) & 0xFFFFFFFF
    if (address in _GLOBAL_UNICAST and interface & 0xFCFFFFFF == 0x5EFE) or (
        policy.allow_nat64 and address in _NAT64
    ):
        return IPv4Address(number & 0xFFFFFFFF)
    return None


def parse_address(text: str) -> Address | None:
    """A literal address without a zone id; None for anything else."""
    if "%" in text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None
