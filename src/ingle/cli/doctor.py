"""`ingle doctor`: what this machine offers, and what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from ingle import __version__
from ingle.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when something that Ingle needs is missing."""
    env = Environment.read()
    healthy = True
    print(f"ingle        {__version__}")
    print(f"python       {platform.python_version()} ({sys.executable})")
    print(f"system       {platform.platform()}, {os.cpu_count()} cores")
    try:
        import mlx.core as mx

        from ingle.kernels import native, ops

        native.configure(threads=env.threads, isa=env.isa)
        version = getattr(mx, "__version__", "unknown")
        print(f"mlx          {version}, back end {ops.describe()}")
    except ImportError as error:
        healthy = False
        print(f"mlx          MISSING: {error}")
        print("             on Linux install one of the extras: pip install 'ingle[cpu]' or 'ingle[cuda]'")
    print(f"decoding     {_protections()}")
    writable = _writable(env)
    print(f"models       {env.models_dir} ({'writable' if writable else 'NOT writable'})")
    print(f"offline      {'yes' if env.offline else 'no'}")
    return 0 if healthy and writable else 1


def _writable(env: Environment) -> bool:
    folder = env.models_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _protections() -> str:
    """What holds the processes back that decode media."""
    from ingle.config import MediaConfig
    from ingle.errors import IngleError
    from ingle.media.sandbox.pool import Sandbox

    sandbox = Sandbox(MediaConfig(workers=1))
    try:
        names = sandbox.protections()
    except IngleError as error:
        return f"FAILS: {error}"
    finally:
        sandbox.close()
    missing = [name for name in ("no network", "no files", "limited memory") if name not in names]
    weaker = f" (not here: {', '.join(missing)})" if missing else ""
    return f"in processes of its own with {', '.join(names)}{weaker}"
