"""How the server and a decoding process talk: small JSON messages, and files without a name for bytes.

A message is four bytes of length and that much JSON, with at most one file descriptor beside it. The
file holds a job's input, or the arrays of its result one after another.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_ARRAYS = 256
_ALIGN = 64
_DTYPES = ("float32", "uint8", "int32", "bool")
# F_SEAL_SEAL, SHRINK, GROW and WRITE, where files can be sealed at all.
_SEALED = 0b1111 if hasattr(fcntl, "F_ADD_SEALS") else 0

Array = npt.NDArray[Any]


class Garbled(Exception):
    """The other side broke the protocol, or went away."""


def send(connection: socket.socket, message: Mapping[str, Any], fd: int | None = None) -> None:
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise Garbled(f"a message of {len(data)} bytes")
    socket.send_fds(connection, [len(data).to_bytes(4, "big")], [] if fd is None else [fd])
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], int | None]:
    """A message and the descriptor that came with it, which is the caller's to close.

    Raises:
        Garbled: the other side is gone, or sent something else.
        TimeoutError: the socket's time-out passed.
    """
    head, fds, _, _ = socket.recv_fds(connection, 4, 4)
    fd = fds[0] if fds else None
    try:
        for extra in fds[1:]:
            os.close(extra)
        head += _exactly(connection, 4 - len(head)) if head else b""
        size = int.from_bytes(head, "big")
        if len(head) < 4 or size > MAX_MESSAGE_BYTES:
            raise Garbled("no message")
        message = json.loads(_exactly(connection, size))
        if not isinstance(message, dict):
            raise Garbled("a message that is no object")
    except ValueError:
        _close(fd)
        raise Garbled("a message that is no JSON") from None
    except BaseException:
        _close(fd)
        raise
    return message, fd


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 65536))
        if not part:
            raise Garbled("the other side is gone")
        parts += part
    return bytes(parts)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def anonymous_file() -> int:
    """A file in memory where the system has such, else one without a name on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ingle-media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_arrays(arrays: Mapping[str, Array]) -> tuple[list[list[Any]], int]:
    """Their layout, [name, dtype, shape, offset] each, and a file that nobody can change any more."""
    fd = anonymous_file()
    layout: list[list[Any]] = []
    at = 0
    for name, array in arrays.items():
        pad = -at % _ALIGN
        write_all(fd, bytes(pad))
        at += pad
        layout.append([name, str(array.dtype), list(array.shape), at])
        write_all(fd, np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        at += array.nbytes
    if _SEALED:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)
    return layout, fd


def read_arrays(layout: Any, fd: int) -> dict[str, Array]:
    """Read-only arrays from a file of the other side, which is not trusted.

    Raises:
        Garbled: the layout does not describe the file.
    """
    try:
        data = _contents(fd)
        arrays: dict[str, Array] = {}
        if len(layout) > MAX_ARRAYS:
            raise Garbled(f"{len(layout)} arrays")
        for name, kind, shape, offset in layout:
            if kind not in _DTYPES or not all(
                isinstance(n, int) and 0 <= n < 2**40 for n in [*shape, offset]
            ):
                raise Garbled("an array of an unknown kind")
            count = int(np.prod(shape, dtype=object)) if shape else 1
            if count == 0:
                arrays[str(name)] = np.zeros(shape, kind)
                continue
            flat = np.frombuffer(data, kind, count, offset)
            arrays[str(name)] = flat.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise Garbled(f"arrays that do not fit their file: {error}") from None
    return arrays


def _contents(fd: int) -> bytes | mmap.mmap:
    """Mapped where seals promise that the file stays as it is; else copied, as a mapping could break."""
    size = os.fstat(fd).st_size
    if size and _SEALED:
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED == _SEALED:
                return mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except OSError:
            pass
    return os.pread(fd, size, 0) if size else b""
