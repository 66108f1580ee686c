"""Read typed values out of untrusted configuration: a wrong type names its key, never a traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ingle.errors import CheckpointError


class Fields:
    """A mapping with typed getters. `where` names it in errors ("config.json", "text_config")."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def sequence(self, key: str) -> list[Any]:
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value  # pyright: ignore[reportUnknownVariableType]

    def numbers(self, key: str) -> tuple[float, ...]:
        items = self.sequence(key)
        if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in items):
            raise self._wrong(key, items, "a list of numbers")
        return tuple(float(v) for v in items)

    def section(self, key: str) -> Fields:
        value = self._get(key, None)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, f"{self.where}: {key}")  # pyright: ignore[reportUnknownArgumentType]

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.values.get(key)
        ids: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self._wrong(key, value, "a token id or a list of them")
        return tuple(ids)

    def refuse(self, key: str, supported: str) -> CheckpointError:
        return CheckpointError(
            f"{self.where}: {key} is {_short(self.values.get(key))}; supported: {supported}"
        )

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.where}: {key} is missing")
            return default
        return value

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} is {_short(value)}, expected {expected}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
