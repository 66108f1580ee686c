"""`file:` URLs below one configured folder: no links are followed, only regular files are read."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote

from ingle.errors import MediaRefused

_FILE = re.compile(r"(?i)file:(?://(?:localhost)?)?(?=/)")


def is_file_url(text: str) -> bool:
    return text[:5].lower() == "file:"


def read_local(url: str, root: Path | None, max_bytes: int) -> bytes:
    """Raises MediaRefused: no root is configured, the path leaves it, or it is no file of that size."""
    prefix = _FILE.match(url)
    if root is None or prefix is None:
        raise _refused("file: URLs are not allowed here")
    path = unquote(url[prefix.end() :])
    top = os.path.abspath(root)
    parts = [part for part in path.split("/") if part]
    roots = [part for part in top.split("/") if part]
    if parts[: len(roots)] != roots or ".." in parts or "\0" in path or len(parts) == len(roots):
        raise _refused("the path is outside of the media root")
    opened: list[int] = []
    try:
        opened.append(os.open(top, os.O_RDONLY | os.O_DIRECTORY))
        *folders, name = parts[len(roots) :]
        for folder in folders:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            opened.append(os.open(folder, flags, dir_fd=opened[-1]))
        opened.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        if not stat.S_ISREG(status.st_mode):
            raise _refused("not a regular file")
        if status.st_size > max_bytes:
            raise MediaRefused(
                f"the file has {status.st_size} bytes, the limit is {max_bytes}", code="media_too_large"
            )
        data = b""
        while len(data) <= max_bytes and (part := os.read(opened[-1], 2**20)):
            data += part
        return data[:max_bytes]
    except OSError as error:
        raise _refused(f"{error.strerror}") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _refused(detail: str) -> MediaRefused:
    return MediaRefused("the address is not allowed", code="media_not_allowed", detail=detail)
