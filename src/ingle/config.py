"""Settings as frozen, validated data. Where they come from (flags, environment) is the CLI's business."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the HTTP server listens to and how much it accepts."""

    host: str = "127.0.0.1"
    port: int = 8400  # 0: any free port
    api_keys: tuple[str, ...] = ()  # empty: no key is asked for
    max_body_bytes: int = 10 * 1024 * 1024
    max_choices: int = 8  # largest `n`
    stuck_after_s: float = 300.0  # a step that takes longer turns /health red
    request_timeout_s: float = 600.0  # a request is cancelled after this long
    shutdown_timeout_s: float = 10.0  # running requests may finish for this long, then they are ended

    def __post_init__(self) -> None:
        _require(bool(self.host), "host must not be empty")
        _require(0 <= self.port <= 65535, f"port must be 0 to 65535, got {self.port}")
        _require(all(self.api_keys), "an API key must not be empty")
        _require(
            self.max_body_bytes >= 1024, f"max_body_bytes must be at least 1024, got {self.max_body_bytes}"
        )
        _require(1 <= self.max_choices <= 128, f"max_choices must be 1 to 128, got {self.max_choices}")
        _require(self.stuck_after_s > 0, "stuck_after_s must be positive")
        _require(self.request_timeout_s > 0, "request_timeout_s must be positive")
        _require(self.shutdown_timeout_s >= 0, "shutdown_timeout_s must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where models live on this machine."""

    models_dir: Path  # catalog models, one folder each
    offline: bool = False  # never touch the network
    hub_endpoint: str | None = None  # another model hub than the default one
