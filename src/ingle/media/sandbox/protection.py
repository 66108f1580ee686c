"""What a decoding process gives up before it sees the first stranger's byte. Linux does most, macOS little.

Each measure is tried on its own; what took hold is reported by name and shown by `ingle doctor`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Sequence

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
# linux/landlock.h; the system calls have these numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read files, list folders
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # rights that each version of the interface knows
OPEN_FILES = 64


def leave_network() -> list[str]:
    """A network namespace with nothing in it. Must come before any thread is started."""
    if not sys.platform.startswith("linux"):
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (_CLONE_NEWUSER | _CLONE_NEWNET, _CLONE_NEWNET):
        if libc.unshare(flags) == 0:
            return ["no network"]
    return []


def limit(memory_bytes: int, file_bytes: int) -> list[str]:
    """Bounds that the kernel keeps: address space, files, no core dumps.

    Not processes: their number counts for the user, and some decoders need a thread of their own.
    """
    done: list[str] = []
    for name, what, value in (
        ("memory", resource.RLIMIT_AS, memory_bytes),
        ("written files", resource.RLIMIT_FSIZE, file_bytes),
        ("open files", resource.RLIMIT_NOFILE, OPEN_FILES),
        ("core dumps", resource.RLIMIT_CORE, 0),
    ):
        try:
            hard = resource.getrlimit(what)[1]
            wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (wanted, wanted))
            done.append(f"limited {name}")
        except (OSError, ValueError):
            continue
    return done


def allow_cpu(seconds: int) -> None:
    """`seconds` of processor time from now on; then the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def confine_files(readable: Sequence[str]) -> list[str]:
    """No file can be opened any more but, for reading, those below `readable`; no socket connected."""
    if not sys.platform.startswith("linux"):
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    done = ["no new privileges"]
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return done
    filesystem = (1 << _FS_BITS.get(version, 16)) - 1
    network = 0b11 if version >= 4 else 0  # TCP bind and connect
    scoped = 0b11 if version >= 6 else 0  # abstract sockets, signals
    attributes = struct.pack("=QQQ", filesystem, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return done
    try:
        for path in readable:
            try:
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            rule = struct.pack("=Qi", _READ, parent)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
            os.close(parent)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0:
            done.append("no files")
    finally:
        os.close(ruleset)
    return done
