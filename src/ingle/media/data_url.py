"""`data:` URLs and bare base64: the size is known before anything is decoded, the alphabet is strict."""

from __future__ import annotations

import binascii
import re

from ingle.errors import MediaRefused

_PREFIX = re.compile(r"(?i)\s*data:")
_BASE64 = re.compile(r"(?i)(?:^|;)\s*base64\s*$")
_JUNK = re.compile(r"[^A-Za-z0-9+/]")
_DROP_SPACE = {ord(c): None for c in " \t\n\r\f"}
_STANDARD = str.maketrans("-_", "+/")
_HEADER_CHARS = 1024


def is_data_url(text: str) -> bool:
    return _PREFIX.match(text) is not None


def decode_data_url(text: str, max_bytes: int) -> bytes:
    """The bytes of `data:[type][;parameter]*;base64,...`. The declared type is of no interest.

    Raises:
        MediaRefused: no comma, not base64, more than `max_bytes`, or characters that do not belong there.
    """
    prefix = _PREFIX.match(text)
    comma = text.find(",", 0, _HEADER_CHARS)
    if prefix is None or comma < 0:
        raise _malformed("a data: URL needs a comma after its header")
    header = text[prefix.end() : comma]
    if ";" not in header or not _BASE64.search(header):
        raise _malformed("a data: URL must say ;base64 right before its comma")
    return decode_base64(text[comma + 1 :], max_bytes)


def decode_base64(text: str, max_bytes: int) -> bytes:
    """Bytes of standard or URL-safe base64; white space and missing padding are fine, nothing else is.

    Raises:
        MediaRefused: as `decode_data_url`.
    """
    packed = text.translate(_DROP_SPACE)
    body = packed.rstrip("=")
    padding = len(packed) - len(body)
    size = len(body) * 3 // 4
    if size > max_bytes:
        raise MediaRefused(
            f"the inline data has {size} bytes, the limit is {max_bytes}", code="media_too_large"
        )
    body = body.translate(_STANDARD)
    if (junk := _JUNK.search(body)) is not None:
        raise _malformed(f"base64 data holds {junk[0]!r} at character {junk.start()}")
    if len(body) % 4 == 1 or (padding and (len(body) + padding) % 4):
        raise _malformed(f"base64 data of {len(body)} characters and {padding} of padding is cut short")
    return binascii.a2b_base64(body + "=" * (-len(body) % 4))


def _malformed(message: str) -> MediaRefused:
    return MediaRefused(message, code="media_malformed")
