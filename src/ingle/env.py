"""The only reader of the environment: every variable that Ingle listens to, in one record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ingle.config import StoreConfig
from ingle.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    models_dir: Path  # INGLE_MODELS_DIR; default: $XDG_DATA_HOME/ingle/models or ~/.local/share/ingle/models
    offline: bool  # INGLE_OFFLINE: 1 never touches the network
    api_key: str | None  # INGLE_API_KEY: the key that `ingle serve` asks for
    threads: int | None  # INGLE_THREADS: threads of the native CPU kernels
    isa: str | None  # INGLE_CPU_ISA: avx512, avx2 or portable
    hub_endpoint: str | None  # HF_ENDPOINT: another hub
    verbose: bool  # INGLE_VERBOSE: 1 shows tracebacks

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Raises ConfigError: a variable holds something else than expected; names it."""
        env = os.environ if variables is None else variables
        data_home = env.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        threads = env.get("INGLE_THREADS") or None
        if threads is not None and not threads.isdecimal():
            raise ConfigError(f"INGLE_THREADS is {threads!r}, expected a number")
        return cls(
            models_dir=Path(env.get("INGLE_MODELS_DIR") or Path(data_home) / "ingle" / "models").expanduser(),
            offline=_flag(env, "INGLE_OFFLINE"),
            api_key=env.get("INGLE_API_KEY") or None,
            threads=None if threads is None else int(threads),
            isa=env.get("INGLE_CPU_ISA") or None,
            hub_endpoint=env.get("HF_ENDPOINT") or None,
            verbose=_flag(env, "INGLE_VERBOSE"),
        )

    def store(self, *, offline: bool = False) -> StoreConfig:
        return StoreConfig(
            models_dir=self.models_dir, offline=offline or self.offline, hub_endpoint=self.hub_endpoint
        )


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "")
    if value.lower() in ("", "0", "false", "no"):
        return False
    if value.lower() in ("1", "true", "yes"):
        return True
    raise ConfigError(f"{name} is {value!r}, expected 1 or 0")
