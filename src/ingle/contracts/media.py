"""What a model takes besides text, and the features that reach it: plain data, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaAssets:
    """What a checkpoint says about media, as it says it.

    Names of tokens: image, boi, eoi, audio, boa, eoa, video (soft tokens, and what begins and ends them).
    """

    token_ids: Mapping[str, int]  # from the configuration
    token_texts: Mapping[str, str]  # from the tokenizer's settings
    kinds: frozenset[MediaKind]  # that it has encoders for
    towers: bool = True  # False: patches and samples reach the decoder as they are
    image_budget: int = 280  # soft tokens of a picture
    frame_budget: int = 70  # of a frame of a clip
    clip_frames: int = 32
    max_side: int = 10_240  # patches: places of a picture's longer side


@dataclass(frozen=True, slots=True)
class BlockTokens:
    """The tokens around and inside one block of soft tokens."""

    begin: str
    soft: str
    end: str
    soft_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpec:
    """What a loaded model takes: the kinds that are in `tokens`."""

    tokens: Mapping[MediaKind, BlockTokens]
    towers: bool = True
    image_budget: int = 280
    frame_budget: int = 70
    clip_frames: int = 32
    max_side: int = 10_240


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A piece of media as a request names it: by URL (http, https, data, file) or as base64."""

    kind: MediaKind | None  # None: what the bytes are
    where: str  # the client's name for it: messages[0].content[1]
    url: str | None = None
    base64: str | None = field(default=None, repr=False)
    budget: int | None = None  # soft tokens of a picture; None: the model's own
    sound: bool = False  # a clip's sound track too


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One run of soft tokens: a picture, a frame, a sound. Arrays are read-only."""

    kind: MediaKind
    soft_tokens: int
    digest: bytes  # SHA-256 of everything that decides the features, and of them
    arrays: Mapping[str, npt.NDArray[Any]] = field(repr=False)  # "patches" and "positions", "mel" or "raw"
    label: str = ""  # said before the block: a frame's time


@dataclass(frozen=True, slots=True, eq=False)
class LoadedMedia:
    """A part, decoded: its blocks in the order of the prompt."""

    part: MediaPart
    kind: MediaKind
    blocks: tuple[Block, ...]
    truncated: bool = False  # there was more of it than the model takes

    @property
    def soft_tokens(self) -> int:
        return sum(block.soft_tokens for block in self.blocks)
