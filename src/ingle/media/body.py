"""A response body under a cap: counted while it comes, at most one gzip layer, never larger than allowed."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, Sequence

from ingle.errors import MediaRefused

_STEP_BYTES = 64 * 1024


def too_large(max_bytes: int, detail: str = "") -> MediaRefused:
    return MediaRefused(
        f"the address answers with more than {max_bytes} bytes", code="media_too_large", detail=detail
    )


def bad_answer(detail: str) -> MediaRefused:
    return MediaRefused("the address gives no usable answer", code="media_bad_answer", detail=detail)


def content_coding(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Is the body gzip? False: identity.

    Raises:
        MediaRefused: another coding, or several.
    """
    codings = [
        part.strip().lower()
        for name, value in headers
        if name.lower() == b"content-encoding"
        for part in value.split(b",")
        if part.strip()
    ]
    if not codings or codings == [b"identity"]:
        return False
    if codings in ([b"gzip"], [b"x-gzip"]):
        return True
    raise bad_answer(f"content-encoding {b', '.join(codings)!r}")


def declared_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    values = {value.strip() for name, value in headers if name.lower() == b"content-length"}
    value = values.pop() if len(values) == 1 else b""
    return int(value) if value.isdigit() else None


async def read_body(chunks: AsyncIterable[bytes], *, gzipped: bool, max_bytes: int) -> bytes:
    """All of the body, decoded. A bomb is found without holding what it inflates to: the first pass
    counts and throws away, only an answer that fits is inflated again to be kept.

    Raises:
        MediaRefused: more than `max_bytes`, or a broken gzip stream.
    """
    kept: list[bytes] = []
    size = 0
    counter = _GzipSize(max_bytes) if gzipped else None
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes, f"{size} bytes and more")
        if counter is not None:
            counter.push(chunk)
        kept.append(chunk)
    if counter is None:
        return b"".join(kept)
    counter.finish()
    return zlib.decompress(b"".join(kept), wbits=31, bufsize=max(1, counter.size))


class _GzipSize:
    def __init__(self, max_bytes: int) -> None:
        self.size = 0
        self._max_bytes = max_bytes
        self._stream = zlib.decompressobj(wbits=31)

    def push(self, chunk: bytes) -> None:
        data = chunk
        while data:
            if self._stream.eof:
                raise bad_answer("bytes after the gzip stream")
            try:
                self.size += len(self._stream.decompress(data, _STEP_BYTES))
            except zlib.error as error:
                raise bad_answer(f"gzip: {error}") from None
            if self.size > self._max_bytes:
                raise too_large(self._max_bytes, f"gzip inflates to {self.size} bytes and more")
            data = self._stream.unconsumed_tail or self._stream.unused_data

    def finish(self) -> None:
        if not self._stream.eof:
            raise bad_answer("the gzip stream is cut short")
