"""One media part of a message, in the shapes of the OpenAI API and of the servers around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ingle.contracts.media import MediaKind, MediaPart
from ingle.errors import InvalidRequest

MEDIA_TYPES = ("image_url", "input_audio", "audio_url", "video_url", "file")
_DETAILS = {"low": 70, "auto": None, "high": 1120}
_URL_KINDS: dict[str, MediaKind] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}


def media_part(part: Mapping[str, Any], where: str) -> MediaPart:
    """Raises InvalidRequest: a field is missing, of a wrong type, or asks for what we do not do."""
    kind: str = part["type"]
    value: Any = part.get(kind)
    at = f"{where}.{kind}"
    if kind in _URL_KINDS and isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at} must be an object, got {short(value)}", param=at)
    fields = cast("dict[str, Any]", value)
    if kind == "file":
        return _file(fields, where, at)
    if kind == "input_audio":
        # The declared format is not looked at: the bytes say what they are.
        return MediaPart("audio", where, base64=_text(fields, "data", at))
    budget = None
    if kind == "image_url" and fields.get("detail") is not None:
        detail = fields["detail"]
        if not isinstance(detail, str) or detail not in _DETAILS:
            expected = ", ".join(_DETAILS)
            raise InvalidRequest(
                f"{at}.detail is {short(detail)}, expected one of {expected}", param=f"{at}.detail"
            )
        budget = _DETAILS[detail]
    sound = fields.get("sound", False) if kind == "video_url" else False
    if not isinstance(sound, bool):
        raise InvalidRequest(f"{at}.sound must be true or false, got {short(sound)}", param=f"{at}.sound")
    return MediaPart(_URL_KINDS[kind], where, url=_text(fields, "url", at), budget=budget, sound=sound)


def _file(fields: Mapping[str, Any], where: str, at: str) -> MediaPart:
    if fields.get("file_id") is not None:
        raise InvalidRequest(
            f"{at}.file_id is not supported here; send file_data",
            param=f"{at}.file_id",
            code="unsupported_value",
        )
    data = _text(fields, "file_data", at)
    if data[:5].lower() == "data:":
        return MediaPart(None, where, url=data)
    return MediaPart(None, where, base64=data)


def _text(fields: Mapping[str, Any], name: str, at: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{name} must be a string, got {short(value)}", param=f"{at}.{name}")
    return value


def short(value: object) -> str:
    """A value as an error shows it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
