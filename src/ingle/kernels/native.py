"""The native CPU extension, if this installation has one: what it offers and why it may be missing."""

from __future__ import annotations

import os

import mlx.core as mx

from ingle.errors import ConfigError

try:
    # `mlx.core` above comes first: the extension shares its library and its Python types.
    from ingle.kernels import _cpu
except ImportError as error:  # not built (no compiler, macOS) or built for another MLX
    _cpu = None
    _reason = "not built (was there a C++ compiler?)" if "cannot import name" in str(error) else str(error)
else:
    _reason = ""


def available() -> bool:
    return _cpu is not None


def describe() -> str:
    """For people: the instruction set and thread count, or why there is no extension."""
    if _cpu is None:
        return f"plain MLX: {_reason}"
    return f"native {_cpu.isa()}, {_cpu.threads()} threads"


def configure(*, threads: int | None = None, isa: str | None = None) -> None:
    """Choose how the kernels run. None leaves it to the machine: all cores this process may use,
    the widest instruction set it has.

    Raises:
        ConfigError: a thread count or instruction set that this machine does not have.
    """
    if _cpu is None:
        return
    if threads is None and hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    if threads is not None:
        if not 1 <= threads <= 256:
            raise ConfigError(f"threads must be 1 to 256, got {threads}")
        _cpu.set_threads(threads)
    if isa is not None:
        if isa not in _cpu.isas():
            raise ConfigError(f"isa {isa!r} is not available here; available: {', '.join(_cpu.isas())}")
        _cpu.set_isa(isa)


def operations() -> ModuleType:
    """The extension itself, for `ops`; its signatures are in `_cpu.pyi`."""
    assert _cpu is not None
    return _cpu
