"""The native CPU extension, if this installation has one: what it offers and why it may be missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import mlx.core  # noqa: F401 # pyright: ignore[reportUnusedImport]  (the extension shares its types)

from ingle.errors import ConfigError

_missing: str | None = None
if TYPE_CHECKING:
    from ingle.kernels import _cpu as cpu
else:
    try:
        from ingle.kernels import _cpu as cpu
    except ImportError as error:  # not built (no compiler, macOS) or built for another MLX
        cpu = None
        _missing = str(error)
        if "cannot import name" in _missing:
            _missing = "not built (was there a C++ compiler?)"


def available() -> bool:
    """Whether `cpu`, the extension itself, is there; its signatures are in `_cpu.pyi`."""
    return _missing is None


def describe() -> str:
    """For people: the instruction set and thread count, or why there is no extension."""
    if _missing is not None:
        return f"plain MLX: {_missing}"
    return f"native {cpu.isa()}, {cpu.threads()} threads"


def configure(*, threads: int | None = None, isa: str | None = None) -> None:
    """Choose how the kernels run. None leaves it to the machine: all cores this process may use,
    the widest instruction set it has.

    Raises:
        ConfigError: a thread count or instruction set that this machine does not have.
    """
    if not available():
        return
    if threads is None and hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    if threads is not None:
        if not 1 <= threads <= 256:
            raise ConfigError(f"threads must be 1 to 256, got {threads}")
        cpu.set_threads(threads)
    if isa is not None:
        if isa not in cpu.isas():
            raise ConfigError(f"isa {isa!r} is not available here; available: {', '.join(cpu.isas())}")
        cpu.set_isa(isa)
