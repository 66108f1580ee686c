import json
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.config import FetchPolicy
from ingle.errors import ConfigError, MediaRefused
from ingle.media.address import is_own, judge, parse_address
from ingle.media.url import parse_target

URLS = json.loads((Path(__file__).parent / "urls.json").read_text())
POLICY = FetchPolicy()


@pytest.mark.parametrize("case", URLS, ids=range(len(URLS)))
def test_published_urls_get_their_verdict(case: dict[str, Any]) -> None:
    if case["expect"] == "allow":
        parse_target(case["url"], POLICY)
        return
    with pytest.raises(MediaRefused) as refused:
        parse_target(case["url"], POLICY)
    assert refused.value.message == "the address is not allowed"
    assert refused.value.detail


PRIVATE = [ip_network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16")]


@st.composite
def private_ipv4(draw: st.DrawFn) -> int:
    network = draw(st.sampled_from(PRIVATE))
    return int(network.network_address) + draw(st.integers(0, network.num_addresses - 1))


@given(private_ipv4(), st.integers(0, 2**64 - 1), st.booleans())
def test_no_address_that_carries_a_private_one_is_allowed(inner: int, noise: int, nat64: bool) -> None:
    prefix = 0x2A00_1450_4001_0000 | (noise & 0xFFFF)
    forms = [
        inner,  # IPv4-compatible
        (0xFFFF << 32) | inner,  # mapped
        (0xFFFF << 48) | inner,  # SIIT
        (0x64_FF9B << 96) | inner,  # NAT64
        (0x64_FF9B_0001 << 80) | inner,  # NAT64, local use
        (0x2002 << 112) | (inner << 80) | noise,  # 6to4
        (0x2001_0000 << 96) | (noise & 0xFFFFFFFF) << 64 | (inner ^ 0xFFFFFFFF),  # Teredo
        (prefix << 64) | (0x5EFE << 32) | inner,  # ISATAP
        (prefix << 64) | (0x0200_5EFE << 32) | inner,
    ]
    policy = FetchPolicy(allow_nat64=nat64)
    assert not judge(IPv4Address(inner), policy).allowed
    for number in forms:
        assert not judge(IPv6Address(number), policy).allowed, IPv6Address(number)


def test_a_mapped_address_is_dialled_as_ipv4() -> None:
    verdict = judge(IPv6Address("::ffff:8.8.8.8"), POLICY)
    assert verdict.allowed and verdict.address == IPv4Address("8.8.8.8")


def test_nat64_is_judged_by_the_address_inside() -> None:
    address = IPv6Address("64:ff9b::8.8.8.8")
    assert not judge(address, POLICY).allowed
    assert judge(address, FetchPolicy(allow_nat64=True)).allowed


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "10.1.2.3", "100.64.0.1", "192.168.1.1", "::1", "fd12::1", "::ffff:10.0.0.1"]
)
def test_allow_private_opens_private_addresses(text: str) -> None:
    closed = judge(ip_address(text), POLICY)
    assert not closed.allowed and closed.private
    assert judge(ip_address(text), FetchPolicy(allow_private=True)).allowed


@pytest.mark.parametrize(
    "text",
    ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254",
     "224.0.0.1", "0.0.0.0", "::", "fe80::1", "198.51.100.1", "64:ff9b::169.254.169.254"],
)  # fmt: skip
def test_nothing_opens_metadata_and_reserved_addresses(text: str) -> None:
    everything = FetchPolicy(allow_private=True, allow_nat64=True)
    assert not judge(ip_address(text), everything).allowed


def test_metadata_stays_closed_inside_allowed_networks() -> None:
    policy = FetchPolicy(allowed_networks=(ip_network("169.254.0.0/16"), ip_network("10.0.0.0/8")))
    assert not judge(ip_address("169.254.169.254"), policy).allowed
    assert judge(ip_address("10.0.0.1"), policy).allowed


def test_denied_networks_win() -> None:
    eight = ip_network("8.8.8.0/24")
    assert not judge(
        ip_address("8.8.8.8"), FetchPolicy(denied_networks=(eight,), allowed_networks=(eight,))
    ).allowed


def test_own_addresses_are_refused_unless_private_ones_are_welcome() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("8.8.8.8"))
    assert not judge(ip_address("8.8.8.8"), POLICY, own=lambda _: True).allowed
    assert judge(ip_address("8.8.8.8"), FetchPolicy(allow_private=True), own=lambda _: True).allowed


def test_zone_ids_are_no_addresses() -> None:
    assert parse_address("fe80::1%eth0") is None


def test_a_private_destination_may_be_explained() -> None:
    with pytest.raises(MediaRefused, match="not allowed; ask the operator"):
        parse_target("http://10.0.0.1/", FetchPolicy(private_hint="ask the operator"))
    with pytest.raises(MediaRefused, match=r"not allowed$"):
        parse_target("http://169.254.169.254/", FetchPolicy(private_hint="ask the operator"))


def test_modes_of_fetching() -> None:
    with pytest.raises(MediaRefused, match="does not fetch"):
        parse_target("https://example.com/", FetchPolicy(url_fetch="off"))
    listed = FetchPolicy(url_fetch="allowlist", allowed_domains=("example.com", ".cdn.example.net"))
    for url in ("https://example.com/a", "https://EXAMPLE.com./a", "https://x.cdn.example.net/"):
        parse_target(url, listed)
    for url in (
        "https://www.example.com/",
        "https://cdn.example.net/",
        "https://badexample.com/",
        "https://8.8.8.8/",
    ):
        with pytest.raises(MediaRefused):
            parse_target(url, listed)
    networks = FetchPolicy(url_fetch="allowlist", allowed_networks=(ip_network("8.8.8.0/24"),))
    parse_target("https://8.8.8.8/", networks)
    only_https = FetchPolicy(allowed_ports=(443,))
    parse_target("https://example.com/", only_https)
    with pytest.raises(MediaRefused, match="not allowed"):
        parse_target("http://example.com/", only_https)


@pytest.mark.parametrize(
    "setting",
    [{"url_fetch": "maybe"}, {"allowed_domains": ("a.com",)}, {"url_fetch": "allowlist"}, {"allowed_ports": (0,)},
     {"timeout_s": 0}, {"max_bytes": 0}, {"max_redirects": 21}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FetchPolicy(**setting)


def test_parts_come_from_the_parsed_url_alone() -> None:
    target = parse_target("HTTPS://Example.COM:00443/a/../b?x=1#frag", POLICY)
    assert (target.scheme, target.host, target.port, target.path) == ("https", "example.com", 443, "/b?x=1")
    assert target.authority == "example.com"
    assert (
        parse_target("http://[2606:4700:4700::1111]:8080/", POLICY).authority == "[2606:4700:4700::1111]:8080"
    )
