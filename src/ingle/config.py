"""Settings as frozen, validated data. Where they come from (flags, environment) is the CLI's business."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Literal, TypeAlias

from ingle.errors import ConfigError


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much the engine takes on at once."""

    max_rows: int = 16  # sequences that run at the same time
    max_waiting: int = 128  # accepted requests that wait for a row; beyond it `QueueFull`
    window_tokens: int = 256  # most prompt tokens computed in one step, all prompt windows together
    max_gap_ms: float = 100.0  # how long a prompt's window may delay the next token of running streams
    memory_bytes: int | None = None  # weights, KV and transients together; None: 90 % of what is free
    prompt_cache_bytes: int | None = None  # KV kept for later requests; None: half of KV's memory; 0: none
    prompt_cache_dir: Path | None = None  # KV is kept there too, and survives restarts
    prompt_cache_disk_bytes: int = 8 * 2**30  # most that it takes there
    media_cache_bytes: int | None = None  # soft tokens of media kept; None: 256 MiB at most; 0: none
    context_length: int | None = None  # caps the model's own limit; None: the model's
    dtype: str = (
        "auto"  # activations: "auto" (float32 on CPU, bfloat16 on GPUs), "float32", "bfloat16", "float16"
    )

    def __post_init__(self) -> None:
        _require(1 <= self.max_rows <= 1024, f"max_rows must be 1 to 1024, got {self.max_rows}")
        _require(0 <= self.max_waiting <= 100_000, f"max_waiting must be 0 to 100000, got {self.max_waiting}")
        _require(
            1 <= self.window_tokens <= 8192, f"window_tokens must be 1 to 8192, got {self.window_tokens}"
        )
        _require(self.max_gap_ms > 0, f"max_gap_ms must be positive, got {self.max_gap_ms}")
        _require(
            self.memory_bytes is None or self.memory_bytes > 0,
            f"memory_bytes must be positive, got {self.memory_bytes}",
        )
        _require(
            self.prompt_cache_bytes is None or self.prompt_cache_bytes >= 0,
            f"prompt_cache_bytes must not be negative, got {self.prompt_cache_bytes}",
        )
        _require(
            self.media_cache_bytes is None or self.media_cache_bytes >= 0,
            f"media_cache_bytes must not be negative, got {self.media_cache_bytes}",
        )
        _require(
            self.prompt_cache_disk_bytes > 0,
            f"prompt_cache_disk_bytes must be positive, got {self.prompt_cache_disk_bytes}",
        )
        _require(
            self.context_length is None or self.context_length >= 16,
            f"context_length must be at least 16, got {self.context_length}",
        )
        _require(
            self.dtype in ("auto", "float32", "bfloat16", "float16"),
            f"dtype must be auto, float32, bfloat16 or float16, got {self.dtype!r}",
        )


def is_loopback(host: str) -> bool:
    """Only this machine reaches a server that listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that clients send. The key itself is not kept: a random one of 128 bits or more needs no salt."""

    digest: bytes  # SHA-256
    name: str  # for messages and logs
    max_concurrent: int | None = None  # requests under way
    tokens_per_minute: int | None = None  # of prompts and answers together

    def __post_init__(self) -> None:
        _require(
            len(self.digest) == 32, f"key {self.name!r}: the digest has {len(self.digest)} bytes, not 32"
        )
        for field in ("max_concurrent", "tokens_per_minute"):
            value = getattr(self, field)
            _require(
                value is None or value >= 1, f"key {self.name!r}: {field} must be at least 1, got {value}"
            )

    @classmethod
    def of(cls, secret: str, name: str = "key") -> ApiKey:
        _require(bool(secret), "an API key must not be empty")
        return cls(digest=hashlib.sha256(secret.encode()).digest(), name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the HTTP server listens to and how much it accepts."""

    host: str = "127.0.0.1"
    port: int = 8400  # 0: any free port
    api_keys: tuple[ApiKey, ...] = ()  # empty: no key is asked for
    cors_origins: tuple[str, ...] = ()  # web pages that may ask, beside this server's own; "*": all
    allowed_hosts: tuple[str, ...] = ()  # names that it may be called by, beside its address; "*": any
    keep_alive_s: float = 10.0  # a stream that is silent for so long sends a comment
    log_prompts: bool = False  # request bodies are logged
    max_body_bytes: int = 32 * 1024 * 1024  # inline media included
    max_choices: int = 8  # largest `n`
    responses_file: Path | None = None  # where responses are kept to be continued; None: in memory
    responses_bytes: int = 64 * 1024 * 1024  # most that they take; the oldest go first
    stuck_after_s: float = 300.0  # a step that takes longer turns /health red
    request_timeout_s: float = 600.0  # a request is cancelled after this long
    shutdown_timeout_s: float = 10.0  # running requests may finish for this long, then they are ended

    def __post_init__(self) -> None:
        _require(bool(self.host), "host must not be empty")
        _require(0 <= self.port <= 65535, f"port must be 0 to 65535, got {self.port}")
        _require(self.keep_alive_s > 0, f"keep_alive_s must be positive, got {self.keep_alive_s}")
        digests = {key.digest for key in self.api_keys}
        _require(len(digests) == len(self.api_keys), "an API key is given twice")
        _require(
            self.max_body_bytes >= 1024, f"max_body_bytes must be at least 1024, got {self.max_body_bytes}"
        )
        _require(1 <= self.max_choices <= 128, f"max_choices must be 1 to 128, got {self.max_choices}")
        _require(
            self.responses_bytes >= 0, f"responses_bytes must not be negative, got {self.responses_bytes}"
        )
        _require(self.stuck_after_s > 0, "stuck_after_s must be positive")
        _require(self.request_timeout_s > 0, "request_timeout_s must be positive")
        _require(self.shutdown_timeout_s >= 0, "shutdown_timeout_s must not be negative")


Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """Which addresses in requests are fetched, and what a fetch may cost. One for every modality."""

    url_fetch: Literal["off", "allowlist", "public"] = "public"  # off: only inline data is taken
    allowed_domains: tuple[str, ...] = ()  # of "allowlist": "example.com" alone, ".example.com" what is below
    allowed_networks: tuple[Network, ...] = ()  # dialled although private; and literal ones in "allowlist"
    denied_networks: tuple[Network, ...] = ()  # never dialled; wins over everything
    allowed_ports: tuple[int, ...] | None = None  # None: all that the Fetch standard does not block
    allow_private: bool = False  # also loopback, RFC 1918, CGNAT and ULA; cloud metadata stays out of reach
    allow_nat64: bool = False  # judge 64:ff9b::/96 by the address inside; else it is refused
    private_hint: str | None = None  # said to the client beside the refusal of a private destination
    timeout_s: float = 10.0  # of one fetch: DNS, dialling, TLS, all hops and the body
    max_bytes: int = 64 * 2**20  # of a body, after decoding
    max_video_bytes: int = 256 * 2**20
    max_redirects: int = 5
    media_root: Path | None = None  # file: URLs below it are read; None: none are

    def __post_init__(self) -> None:
        _require(
            self.url_fetch in ("off", "allowlist", "public"),
            f"url_fetch must be off, allowlist or public, got {self.url_fetch!r}",
        )
        _require(
            bool(self.allowed_domains) <= (self.url_fetch == "allowlist"),
            f"allowed_domains needs url_fetch allowlist, got {self.url_fetch}",
        )
        _require(
            self.url_fetch != "allowlist" or bool(self.allowed_domains or self.allowed_networks),
            "url_fetch allowlist needs allowed_domains or allowed_networks",
        )
        for port in self.allowed_ports or ():
            _require(1 <= port <= 65535, f"allowed_ports must hold 1 to 65535, got {port}")
        _require(self.timeout_s > 0, f"timeout_s must be positive, got {self.timeout_s}")
        _require(self.max_bytes > 0, f"max_bytes must be positive, got {self.max_bytes}")
        _require(self.max_video_bytes > 0, f"max_video_bytes must be positive, got {self.max_video_bytes}")
        _require(0 <= self.max_redirects <= 20, f"max_redirects must be 0 to 20, got {self.max_redirects}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """What one request may bring, and what decoding it may take."""

    fetch: FetchPolicy = FetchPolicy()
    max_items: int = 8  # pieces of media in one request
    max_total_bytes: int = 256 * 2**20  # of all of them, fetched or inline, before decoding
    max_soft_tokens: int = 16_384  # of all of them, in the prompt
    max_side: int = 8192  # pixels
    max_pixels: int = 33_000_000  # of a picture, or of one frame
    max_frames: int = 20_000  # of a clip, decoded to sample from
    max_video_pixels: int = 8_000_000_000  # of a clip: frames times pixels
    max_audio_s: float = 600.0  # of decoded sound
    max_pcm_bytes: int = 256 * 2**20  # of decoded sound, all channels, as float32
    timeout_s: float = 60.0  # for fetching and decoding all media of a request
    workers: int = 2  # decoding processes
    decode_timeout_s: float = 30.0  # of one decoding; its process is then killed and replaced
    decode_cpu_s: int = 30  # processor time of one decoding
    decode_memory_bytes: int = 3 * 2**30  # address space of one decoding process
    fast_jpeg: bool = False  # decode JPEG at the smallest scale that covers the target: quick, not exact

    def __post_init__(self) -> None:
        for name in (
            "max_items",
            "max_total_bytes",
            "max_soft_tokens",
            "max_side",
            "max_pixels",
            "max_frames",
        ):
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be at least 1, got {value}")
        for name in ("max_video_pixels", "max_audio_s", "max_pcm_bytes", "timeout_s", "decode_timeout_s"):
            value = getattr(self, name)
            _require(value > 0, f"{name} must be positive, got {value}")
        _require(1 <= self.workers <= 64, f"workers must be 1 to 64, got {self.workers}")
        _require(self.decode_cpu_s >= 1, f"decode_cpu_s must be at least 1, got {self.decode_cpu_s}")
        _require(
            self.decode_memory_bytes >= 512 * 2**20,
            f"decode_memory_bytes must be at least {512 * 2**20}, got {self.decode_memory_bytes}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where models live on this machine."""

    models_dir: Path  # catalog models, one folder each
    offline: bool = False  # never touch the network
    hub_endpoint: str | None = None  # another model hub than the default one
