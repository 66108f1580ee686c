"""Stage replacements for live state, then publish them together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class StagedChange:
    """A replacement that is already built. `publish` only rebinds names, so it cannot fail."""

    publish: Callable[[], None]


@dataclass(slots=True)
class Transaction:
    """Several staged changes that become visible together. Leaving without `commit` drops them."""

    _staged: list[StagedChange] = field(default_factory=list[StagedChange])
    _done: bool = False

    def stage(self, change: StagedChange) -> None:
        self._staged.append(change)

    def commit(self) -> None:
        if self._done:
            raise RuntimeError("the transaction is already finished")
        self._done = True
        for change in self._staged:
            change.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done = True
        self._staged.clear()  # the last references to unpublished arrays
