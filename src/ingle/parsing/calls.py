"""Tools that a request offers, and calls of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

MAX_DEPTH = 64  # of arguments and schemas that are walked


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # a JSON schema of an object
    strict: bool = False  # arguments must follow it

    def properties(self) -> Mapping[str, Any]:
        """Schemas of the arguments, by name."""
        found = self.parameters.get("properties")
        return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}

    def required(self) -> frozenset[str]:
        """Arguments that must be there."""
        return required(self.parameters)

    def schema(self) -> dict[str, Any]:
        """Of the arguments, as an object in any case."""
        return {"type": "object", **self.parameters}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # a JSON object


class BrokenCall(ValueError):
    """What stands between a call's markers is no call."""


def call(name: object, arguments: object) -> Call:
    """Raises BrokenCall: no name, or arguments that are no object."""
    if not isinstance(name, str) or not name:
        raise BrokenCall("no name")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = parsed(arguments or "{}")
    if not isinstance(arguments, dict):
        raise BrokenCall("arguments are no object")
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def parsed(text: str) -> Any:
    """A JSON value.

    Raises:
        BrokenCall: it is none.
    """
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        raise BrokenCall("no JSON") from None


def values(text: str) -> Iterator[Any]:
    """The JSON values that stand in a row, with blanks, commas or semicolons between them.

    Raises:
        BrokenCall: something else.
    """
    decoder = json.JSONDecoder(parse_constant=_refused)
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,;":
            at += 1
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise BrokenCall("no JSON") from None
        yield value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def named(tools: Sequence[Tool], name: str) -> Tool | None:
    return next((tool for tool in tools if tool.name == name), None)


def required(schema: Any) -> frozenset[str]:
    """Names that an object's schema asks for; whatever else stands there asks for nothing."""
    listed: Any = cast("Mapping[str, Any]", schema).get("required") if isinstance(schema, Mapping) else None
    if not isinstance(listed, list):
        return frozenset()
    return frozenset(name for name in cast("list[Any]", listed) if isinstance(name, str))


def resolved(reference: object, root: Any) -> Any:
    """What a local `$ref` refers to in `root`; None: nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for step in reference[1:].split("/"):
        if step and isinstance(target, Mapping):
            key = step.replace("~1", "/").replace("~0", "~")
            target = cast("Mapping[str, Any]", target).get(key)
    return target


def kinds(schema: Any, root: Any = None, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema allows, whose references lie in `root`; empty when it does not say."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return frozenset()
    fields = cast("Mapping[str, Any]", schema)
    if "$ref" in fields:
        return kinds(resolved(fields["$ref"], root), root, depth + 1)
    declared: Any = fields.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(str(kind) for kind in cast("list[Any]", declared))
    for name in ("anyOf", "oneOf"):
        options: Any = fields.get(name)
        if isinstance(options, list):
            found = [kinds(option, root, depth + 1) for option in cast("list[Any]", options)]
            return frozenset().union(*found) if all(found) else frozenset()
    if isinstance(fields.get("enum"), list):
        return frozenset(_kind(value) for value in fields["enum"])
    if "const" in fields:
        return frozenset({_kind(fields["const"])})
    return frozenset()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
