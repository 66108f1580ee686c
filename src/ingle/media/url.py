"""From a caller's text to the parts that are dialled: parsed once, checked before and after.

The parser is the WHATWG one, as in browsers. Text that other parsers read differently (user names,
backslashes, percent signs in the host, missing slashes) is refused before it is parsed, so that no
two readers of one URL can disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import ada_url

from ingle.config import FetchPolicy
from ingle.errors import MediaRefused
from ingle.media.address import Address, judge, parse_address

MAX_CHARS = 8192
NOT_ALLOWED = "the address is not allowed"

_SPELLED_OUT = re.compile(r"(?i)https?://(?P<authority>[^/?#]+)")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_FORBIDDEN_IN_AUTHORITY = re.compile(r"[%@\s]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
# RFC 6761 and 6762, names that private networks use, and names that search domains would complete.
_SPECIAL_USE = frozenset(
    (
        *("alt", "arpa", "corp", "example", "home", "internal", "intranet", "invalid", "lan", "local"),
        *("localdomain", "localhost", "onion", "private", "test"),
    )
)
# https://fetch.spec.whatwg.org/#port-blocking
_BLOCKED_PORTS = frozenset(
    (
        *(0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102),
        *(103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465),
        *(512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993),
        *(995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668),
        *(6669, 6679, 6697, 10080),
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """One hop: Host, SNI, DNS name and request line come from here and from nowhere else."""

    scheme: str  # "http" or "https"
    host: str  # ASCII, lower case, without brackets and trailing dot
    port: int
    path: str  # with the query; begins with "/"
    address: Address | None = None  # the host, when it is a literal address

    @property
    def authority(self) -> str:
        """The Host header: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


def parse_target(text: str, policy: FetchPolicy) -> Target:
    """The parts of an http(s) URL that passes everything that can be said without the network.

    Raises:
        MediaRefused: it does not pass; `detail` says why.
    """
    if policy.url_fetch == "off":
        raise _refused("fetching is off", "this server does not fetch addresses; send the data inline")
    if len(text) > MAX_CHARS:
        raise _refused(f"{len(text)} characters, the limit is {MAX_CHARS}")
    if _FORBIDDEN.search(text):
        raise _refused("a control character, space or backslash")
    spelled = _SPELLED_OUT.match(text)
    if spelled is None:
        raise _refused("not an absolute http:// or https:// URL")
    if _FORBIDDEN_IN_AUTHORITY.search(spelled["authority"]):
        raise _refused("a user name, percent sign or white space in the authority")
    try:
        parsed = ada_url.URL(text)
    except ValueError:
        raise _refused("not a valid URL") from None
    if parsed.username or parsed.password or parsed.protocol not in ("http:", "https:"):
        raise _refused("a user name or a foreign scheme")
    scheme = parsed.protocol[:-1]
    port = int(parsed.port) if parsed.port else _default_port(scheme)
    if port in _BLOCKED_PORTS or (policy.allowed_ports is not None and port not in policy.allowed_ports):
        raise _refused(f"port {port} is blocked")
    path = (parsed.pathname or "/") + parsed.search
    host = parsed.hostname
    literal = parse_address(host.strip("[]"))
    if literal is not None:
        verdict = judge(literal, policy)
        if not verdict.allowed:
            raise refused_address(f"{literal}: {verdict.reason}", private=verdict.private, policy=policy)
        host, literal = str(verdict.address), verdict.address
    else:
        host = _checked_name(host)
    if policy.url_fetch == "allowlist" and not _listed(host, literal, policy):
        raise _refused(f"{host} is not in allowed_domains")
    return Target(scheme, host, port, path, literal)


def parse_redirect(base: Target, location: bytes, policy: FetchPolicy) -> Target:
    """Where a redirect of `base` leads: an absolute text passes the gates as it is, a relative one joined.

    Raises:
        MediaRefused: it does not pass, or leaves https for http.
    """
    text = location.decode("utf-8", "replace")
    if not text or "\ufffd" in text or _FORBIDDEN.search(text):
        raise _refused("a redirect without a usable Location", "the address gives no usable answer")
    if not text.lower().startswith(("http:", "https:")):
        try:
            text = ada_url.join_url(base.url, text)
        except ValueError:
            raise _refused("a Location that is no URL", "the address gives no usable answer") from None
    target = parse_target(text, policy)
    if base.scheme == "https" and target.scheme == "http":
        raise _refused("a redirect from https to http")
    return target


def refused_address(detail: str, *, private: bool, policy: FetchPolicy) -> MediaRefused:
    hint = policy.private_hint if private else None
    return _refused(detail, f"{NOT_ALLOWED}; {hint}" if hint else NOT_ALLOWED)


def _refused(detail: str, message: str = NOT_ALLOWED) -> MediaRefused:
    return MediaRefused(message, code="media_not_allowed", detail=detail)


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _checked_name(host: str) -> str:
    name = host.removesuffix(".")
    labels = name.split(".")
    if len(name) > 253:
        raise _refused(f"a name of {len(name)} characters, the limit is 253")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise _refused("not a DNS name")
    if len(labels) < 2:
        raise _refused("a name of one label")
    if _NUMERIC.fullmatch(labels[-1]):
        raise _refused("the last label is a number")
    if labels[-1] in _SPECIAL_USE:
        raise _refused(f".{labels[-1]} is a special-use name")
    return name


def _listed(host: str, literal: Address | None, policy: FetchPolicy) -> bool:
    if literal is not None and any(literal in network for network in policy.allowed_networks):
        return True
    for entry in policy.allowed_domains:
        domain = entry.lower().rstrip(".")
        if host == domain or (domain.startswith(".") and host.endswith(domain)):
            return True
    return False
