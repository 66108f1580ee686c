"""What a model takes besides text, and the features that reach it: plain data, no tensors."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio", "video"]


class MediaObserver(Protocol):
    """Counts what happens to media. Called from any thread; must not block or raise."""

    def result(self, step: str, result: str) -> None:
        """One more `step` ("fetch", "decode") ended with `result`."""
        ...

    def phase(self, name: str, seconds: float) -> None:
        """One more time that the phase `name` took."""
        ...


class NoObserver:
    def result(self, step: str, result: str) -> None:
        pass

    def phase(self, name: str, seconds: float) -> None:
        pass
