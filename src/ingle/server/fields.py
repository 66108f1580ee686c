"""Decode a request body: known fields typed, unsupported ones refused by name, unknown ones counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from ingle.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)
Harmless = Callable[[Any], bool]

_PATH = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)


def only(*values: Any) -> Harmless:
    """A field that is accepted with these values (and null), because they ask for nothing special."""
    return lambda value: value is None or any(value == v and type(value) is type(v) for v in values)


def anything(_: Any) -> bool:
    """A field that by its definition changes nothing about the answer."""
    return True


def decode(
    body: bytes, into: type[T], unsupported: Mapping[str, Harmless], count_unknown: Callable[[str], None]
) -> T:
    """A struct from a JSON body.

    Raises:
        InvalidRequest: not JSON, not an object, a field of a wrong type, or a field in `unsupported`
            with a value that asks for something we do not do. Names field, value and expectation.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {type(content).__name__}")
    return convert(cast("dict[str, Any]", content), into, unsupported, count_unknown)


def convert(
    fields: Mapping[str, Any],
    into: type[T],
    unsupported: Mapping[str, Harmless],
    count_unknown: Callable[[str], None],
) -> T:
    """A struct from a decoded object; raises as `decode`."""
    known = set(into.__struct_fields__)
    for name, value in fields.items():
        if name in known:
            continue
        harmless = unsupported.get(name)
        if harmless is None:
            count_unknown(name)
        elif not harmless(value):
            raise InvalidRequest(
                f"{name} is not supported here (got {shown(value)})", param=name, code="unsupported_value"
            )
    try:
        return msgspec.convert(
            {name: value for name, value in fields.items() if name in known and value is not None}, into
        )
    except msgspec.ValidationError as error:
        raise _named(str(error), fields) from None


def shown(value: object) -> str:
    """A value as an error shows it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _named(message: str, fields: Mapping[str, Any]) -> InvalidRequest:
    """msgspec's error with the path in front, as clients know paths."""
    found = _PATH.fullmatch(message)
    assert found is not None
    problem, path = found["problem"], (found["path"] or "").lstrip(".")
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing is not None:
        name = ".".join(filter(None, [path, missing[1]]))
        return InvalidRequest(f"{name} is required", param=name, code="missing_required_parameter")
    top = re.match(r"\w+", path)
    text = f"{path}: {problem[:1].lower()}{problem[1:]}"
    if top:
        text += f" ({top[0]} is {shown(fields.get(top[0]))})"
    return InvalidRequest(text, param=path or None, code="invalid_type")
