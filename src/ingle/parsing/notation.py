"""Values in notations that are nearly JSON: reading them, and grammars of them from JSON schemas.

Gemma 4 writes `{key:<|"|>text<|"|>,n:5}`, Llama's pythonic calls write `{'key': "text", 'n': None}`. Both are
read by one scanner that knows where strings are, and never looks for a brace inside one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ingle.errors import InvalidRequest
from ingle.parsing.calls import MAX_DEPTH, BrokenCall, kinds, required, resolved
from ingle.parsing.grammar import LarkSource
from ingle.parsing.markup import quoted

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_BARE_END = re.compile(r"[,{}\[\]()]")


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written."""

    quotes: tuple[str, ...]  # strings stand between two of the same
    escaped: bool  # JSON's escapes hold in strings
    constants: Mapping[str, Any]  # "true" -> True, ...
    quote_rule: str  # a string's mark, in Lark
    text_rule: str  # what stands between, as a Lark terminal's body
    quoted_keys: bool  # of objects inside


class Reader:
    """Reads values from `text`, from `at` on. What it does not understand raises BrokenCall."""

    def __init__(self, text: str, notation: Notation, at: int = 0) -> None:
        self.text, self.at = text, at
        self._notation = notation

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def takes(self, token: str) -> bool:
        """Whether `token` follows; then it is read."""
        self.blank()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.takes(token):
            raise BrokenCall(f"no {token!r} at {self.at}")

    def word(self, pattern: str) -> str:
        self.blank()
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            raise BrokenCall(f"nothing readable at {self.at}")
        self.at = found.end()
        return found[0]

    def string(self) -> str | None:
        """A quoted string, if one follows."""
        self.blank()
        for quote in self._notation.quotes:
            if self.text.startswith(quote, self.at):
                return self._until(quote)
        return None

    def _until(self, quote: str) -> str:
        start = self.at + len(quote)
        at = start
        while True:
            end = self.text.find(quote, at)
            if end < 0:
                raise BrokenCall("a string does not end")
            slashes = len(self.text[start:end]) - len(self.text[start:end].rstrip("\\"))
            if not self._notation.escaped or slashes % 2 == 0:
                break
            at = end + 1
        self.at = end + len(quote)
        inner = self.text[start:end]
        return _unescaped(inner, quote) if self._notation.escaped and "\\" in inner else inner

    def value(self, schema: Any = None, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise BrokenCall("too deep")
        found = self.string()
        if found is not None:
            return found
        if self.takes("{"):
            return self.fields("}", ":", schema, depth + 1)
        if self.takes("["):
            return self._items(schema, depth + 1)
        return self._bare(schema)

    def fields(self, close: str, between: str, schema: Any, depth: int = 0) -> dict[str, Any]:
        """`key: value` pairs up to `close`; what opened them is read."""
        properties: Any = _at(schema, "properties")
        out: dict[str, Any] = {}
        while not self.takes(close):
            if out:
                self.expect(",")
                if self.takes(close):
                    break
            key = self.string()
            if key is None:
                key = self.word(r"[^\s:=,{}\[\]()<>\"']+")
            self.expect(between)
            out[key] = self.value(_at(properties, key), depth)
        return out

    def _items(self, schema: Any, depth: int) -> list[Any]:
        items = _at(schema, "items")
        out: list[Any] = []
        while not self.takes("]"):
            if out:
                self.expect(",")
                if self.takes("]"):
                    break
            out.append(self.value(items, depth))
        return out

    def _bare(self, schema: Any) -> Any:
        self.blank()
        end = _BARE_END.search(self.text, self.at)
        text = self.text[self.at : end.start() if end else len(self.text)].rstrip()
        if not text:
            raise BrokenCall(f"no value at {self.at}")
        self.at += len(text)
        wanted = kinds(schema)
        if wanted == frozenset({"string"}):
            return text
        if text in self._notation.constants:
            return self._notation.constants[text]
        if _NUMBER.match(text):
            return json.loads(text)
        if wanted and "string" not in wanted:
            raise BrokenCall(f"{text[:40]!r} is none of {', '.join(sorted(wanted))}")
        return text


def _at(schema: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", schema).get(name) if isinstance(schema, Mapping) else None


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "/": "/", '"': '"', "'": "'"}


def _unescaped(text: str, quote: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1][0] == "u":
            return chr(int(found[1][1:], 16))
        return _ESCAPES.get(found[1], found[0])

    joined = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ValueRules:
    """Lark rules for values of JSON schemas in a notation.

    Types, `properties`, `required`, `items`, `enum`, `const`, `anyOf`/`oneOf` and local `$ref`s are followed;
    what narrows values further (lengths, ranges, patterns) is not, and is refused for a strict tool.
    """

    def __init__(self, source: LarkSource, notation: Notation, prefix: str) -> None:
        self._source, self._notation, self._prefix = source, notation, prefix
        self._count = 0
        self._references: dict[str, str] = {}
        self._any: str | None = None

    def value(self, schema: Any, root: Any, *, strict: bool = False, depth: int = 0) -> str:
        """A Lark expression for values of `schema`, whose references lie in `root`."""
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"a schema is more than {MAX_DEPTH} levels deep", param="tools")
        if not isinstance(schema, Mapping) or not schema:
            return self.anything()
        fields = cast("Mapping[str, Any]", schema)
        reference: Any = fields.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference, root, strict, depth)
        if "const" in fields:
            return self.literal(fields["const"])
        options: Any = fields.get("enum")
        if isinstance(options, list) and options:
            return self._either([self.literal(value) for value in cast("list[Any]", options)])
        for name in ("anyOf", "oneOf"):
            options = fields.get(name)
            if isinstance(options, list) and options:
                some = cast("list[Any]", options)
                return self._either([self.value(o, root, strict=strict, depth=depth + 1) for o in some])
        if strict:
            _refuse_narrower(fields)
        wanted = sorted(kinds(fields))
        if not wanted:
            return self.anything()
        return self._either([self._of(kind, fields, root, strict, depth) for kind in wanted])

    def members(self, schema: Any, root: Any, pair: str, *, strict: bool, depth: int = 0) -> str:
        """The pairs of an object, known properties in their order; `pair` stands between key and value."""
        properties: Any = _at(schema, "properties")
        if not isinstance(properties, Mapping) or not properties:
            if properties is not None or _at(schema, "additionalProperties") is False:
                return '""'
            return self._pairs(pair)
        known = cast("Mapping[str, Any]", properties)
        asked = required(schema)
        items: list[tuple[str, bool]] = []
        for key, inner in known.items():
            value = self.value(inner, root, strict=strict, depth=depth + 1)
            items.append((f"{self._key(key, pair)} {value}", key in asked))
        return self._ordered(items)

    def _ordered(self, items: Sequence[tuple[str, bool]]) -> str:
        """Items in order with commas between, the optional ones perhaps left out."""
        after = '""'
        first = '""'
        for text, needed in reversed(items):
            item = self._rule(text)
            here = f'"," {item} {after}'
            start = f"{item} {after}"
            if needed:
                first, after = self._rule(start), self._rule(here)
            else:
                first, after = self._rule(f"{start} | {first}"), self._rule(f"{here} | {after}")
        return first

    def _pairs(self, pair: str) -> str:
        key = self._string() if self._notation.quoted_keys and pair == ":" else self._name()
        one = self._rule(f"{key} {quoted(pair)} {self.anything()}")
        return f'({one} ("," {one})*)?'

    def _key(self, key: str, pair: str) -> str:
        if self._notation.quoted_keys and pair == ":":
            return f"{self._quoted(key)} {quoted(pair)}"
        return quoted(key + pair)

    def literal(self, value: Any) -> str:
        """Exactly this value."""
        if isinstance(value, str):
            return self._quoted(value)
        for text, constant in self._notation.constants.items():
            if constant is value:
                return quoted(text)
        if isinstance(value, (int, float)):
            return quoted(json.dumps(value))
        return self.anything()

    def _quoted(self, text: str) -> str:
        if self._notation.escaped:
            return quoted(json.dumps(text, ensure_ascii=False))
        quote = self._notation.quote_rule
        return f"{quote} {quoted(text)} {quote}" if text else f"{quote} {quote}"

    def anything(self) -> str:
        if self._any is None:
            name = self._any = f"{self._prefix}_any"
            text, number = self._string(), self._number()
            constants = " | ".join(quoted(word) for word in self._notation.constants)
            key = text if self._notation.quoted_keys else self._name()
            pair = self._rule(f'{key} ":" {name}')
            self._source.rule(f"{name}_object", f'"{{" ({pair} ("," {pair})*)? "}}"')
            self._source.rule(f"{name}_list", f'"[" ({name} ("," {name})*)? "]"')
            self._source.rule(name, f"{text} | {number} | {constants} | {name}_object | {name}_list")
        return self._any

    def _of(self, kind: str, schema: Mapping[str, Any], root: Any, strict: bool, depth: int) -> str:
        if kind == "string":
            return self._string()
        if kind in ("integer", "number"):
            return self._number(whole=kind == "integer")
        if kind == "object":
            members = self.members(schema, root, ":", strict=strict, depth=depth)
            return self._rule(f'"{{" {members} "}}"')
        if kind == "array":
            item = self.value(schema.get("items"), root, strict=strict, depth=depth + 1)
            return self._rule(f'"[" ({item} ("," {item})*)? "]"')
        wanted: dict[str, tuple[Any, ...]] = {"boolean": (True, False), "null": (None,)}
        if kind not in wanted:
            raise InvalidRequest(
                f"a schema has the type {kind[:40]!r}, which JSON does not have", param="tools"
            )
        return self._either([self.literal(value) for value in wanted[kind]])

    def _reference(self, reference: str, root: Any, strict: bool, depth: int) -> str:
        known = self._references.get(reference)
        if known is not None:
            return known
        target = resolved(reference, root)
        if target is None:
            raise InvalidRequest(f"a schema refers to {reference[:80]!r}, which is not in it", param="tools")
        self._count += 1
        name = self._references[reference] = f"{self._prefix}_ref{self._count}"
        self._source.rule(name, self.value(target, root, strict=strict, depth=depth + 1))
        return name

    def _string(self) -> str:
        quote = self._notation.quote_rule
        return f"{quote} {self._terminal('TEXT', self._notation.text_rule)}? {quote}"

    def _number(self, *, whole: bool = False) -> str:
        if whole:
            return self._terminal("INTEGER", "/-?(0|[1-9][0-9]{0,18})/")
        return self._terminal("NUMBER", r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/")

    def _name(self) -> str:
        return self._terminal("NAME", "/[A-Za-z_][A-Za-z0-9_]{0,63}/")

    def _terminal(self, name: str, body: str) -> str:
        full = f"{self._prefix.upper()}_{name}"
        if full not in self._references:
            self._references[full] = self._source.rule(full, body)
        return full

    def _either(self, options: Sequence[str]) -> str:
        return options[0] if len(options) == 1 else self._rule(" | ".join(options))

    def _rule(self, body: str) -> str:
        self._count += 1
        return self._source.rule(f"{self._prefix}_r{self._count}", body)


_NARROWER = (
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
    "patternProperties",
    "allOf",
    "not",
    "if",
)


def _refuse_narrower(schema: Mapping[str, Any]) -> None:
    found = next((name for name in _NARROWER if name in schema), None)
    if found is not None:
        raise InvalidRequest(
            f"a strict tool's schema uses {found!r}, which this model's notation of calls cannot enforce",
            param="tools",
            code="invalid_schema",
        )
