"""The decoding process: gives up its rights, then does one job after another until its socket closes.

Started by `pool`; its only argument is the number of its end of a socket pair. The first message that
it receives holds its limits, the first that it sends says which protections took hold.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ingle.media.sandbox import protection, wire

Job: TypeAlias = Callable[[memoryview, Mapping[str, Any]], tuple[dict[str, Any], dict[str, wire.Array]]]


def main(fd: int, jobs: Callable[[], Mapping[str, Job]]) -> None:
    """Serve `jobs`, which are imported only after the network is gone."""
    connection = socket.socket(fileno=fd)
    limits, _ = wire.receive(connection)
    status = os.open("/proc/self/status", os.O_RDONLY) if sys.platform.startswith("linux") else None
    active = protection.leave_network()
    table = jobs()
    readable = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
    active += protection.confine_files(readable)
    active += protection.limit(limits["memory_bytes"], limits["file_bytes"])
    protection.allow_cpu(3600)
    wire.send(connection, {"ready": active})
    while True:
        try:
            request, source = wire.receive(connection)
        except wire.Garbled:
            return  # the server is gone, or wants us to be
        assert source is not None
        protection.allow_cpu(request["cpu_s"])
        reply, result = _answer(table, request, source)
        reply["peak_bytes"] = _peak_bytes(status)
        wire.send(connection, reply, result)
        if result is not None:
            os.close(result)


def _peak_bytes(status: int | None) -> int:
    """Most memory that was resident. Linux's rusage would count the process that started this one."""
    if status is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = re.search(rb"VmHWM:\s+(\d+) kB", os.pread(status, 16384, 0))
    return int(found[1]) * 1024 if found else 0


def _answer(
    table: Mapping[str, Job], request: Mapping[str, Any], source: int
) -> tuple[dict[str, Any], int | None]:
    from ingle.errors import MediaRefused

    try:
        data = _read(source, request["size"])
        info, arrays = table[request["job"]](data, request["options"])
        layout, result = wire.write_arrays(arrays)
        return {"info": info, "arrays": layout}, result
    except MediaRefused as error:
        return {
            "refused": {"message": error.message, "code": error.code, "detail": error.detail[:2000]}
        }, None
    except MemoryError:
        return {"failed": "out of memory"}, None
    except Exception as error:  # whatever a decoder's code can raise
        return {"failed": f"{type(error).__name__}: {error}"[:2000]}, None


def _read(source: int, size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(source, size, prot=mmap.PROT_READ) if size else b"")
    finally:
        os.close(source)


def _jobs() -> Mapping[str, Job]:
    from ingle.media.jobs import JOBS

    return JOBS


if __name__ == "__main__":
    logging.disable()  # decoders talk; what matters comes back as a message
    main(int(sys.argv[1]), _jobs)
