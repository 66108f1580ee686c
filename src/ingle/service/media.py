"""Media of a request: refused where the model takes none, else loaded and put into the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ingle.config import MediaConfig
from ingle.contracts.media import LoadedMedia, MediaKind, MediaObserver, MediaPart, MediaSpec
from ingle.errors import InvalidRequest, MediaRefused
from ingle.media.loader import MediaLoader
from ingle.service.generation import Prompt
from ingle.service.models import TextModel
from ingle.text.media_parts import MEDIA_TYPES, media_part
from ingle.text.media_prompt import expand, fill


class MediaInput:
    """The media loader of a server. Made with its first use: text costs nothing of it."""

    def __init__(self, config: MediaConfig, observer: MediaObserver | None = None) -> None:
        self._config, self._observer = config, observer
        self._loader: MediaLoader | None = None

    async def load(
        self, parts: Sequence[MediaPart], spec: MediaSpec, request_id: str
    ) -> tuple[LoadedMedia, ...]:
        """Raises MediaRefused: names the part."""
        if self._loader is None:
            self._loader = MediaLoader(self._config, observer=self._observer)
        return tuple(await self._loader.load(parts, spec, request_id))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """A raw prompt as a client's list of text and media parts, unchecked."""

    items: Sequence[Any]


def check_media(model: TextModel, parts: Sequence[MediaPart]) -> None:
    """Raises InvalidRequest: the model does not take one of the pieces; names both."""
    for part in parts:
        takes = model.media.tokens if model.media is not None else {}
        wanted = "file" if part.kind is None else part.kind
        if not takes or (part.kind is not None and part.kind not in takes):
            raise InvalidRequest(
                f"{part.where}: model {model.name!r} takes no {wanted} parts",
                param=part.where,
                code="unsupported_media",
            )
        if part.sound and "audio" not in takes:
            raise InvalidRequest(
                f"{part.where}: model {model.name!r} does not hear; leave sound out",
                param=part.where,
                code="unsupported_media",
            )


async def load_media(
    model: TextModel, parts: Sequence[MediaPart], media: MediaInput | None, request_id: str
) -> tuple[LoadedMedia, ...]:
    """The pieces, decoded. Nothing is fetched for a model that does not take them.

    Raises:
        InvalidRequest: as `check_media`. MediaRefused: a piece is refused.
    """
    check_media(model, parts)
    if not parts or media is None or model.media is None:
        return ()
    loaded = await media.load(parts, model.media, request_id)
    for item in loaded:
        _check_places(item, model.media.max_side)
    return loaded


def _check_places(item: LoadedMedia, limit: int) -> None:
    """A picture longer than the model's table of positions cannot be placed."""
    for block in item.blocks:
        positions = block.arrays.get("positions")
        if positions is not None and (side := int(positions.max()) + 1) > limit:
            raise MediaRefused(
                f"{item.part.where}: the picture is {side} patches long once it is scaled, the model has "
                f"places for {limit}; send it with less detail or less elongated",
                param=item.part.where,
                code="media_too_large",
            )


def with_kinds(messages: list[dict[str, Any]], kinds: Sequence[MediaKind]) -> list[dict[str, Any]]:
    """`messages` as chat templates take them: each place of a piece says its kind."""

    def part(entry: dict[str, Any]) -> dict[str, Any]:
        return {"type": kinds[entry["index"]]} if entry["type"] == "media" else entry

    return [
        {**message, "content": [part(entry) for entry in cast("list[dict[str, Any]]", message["content"])]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


async def encode_parts(model: TextModel, parts: Parts, media: MediaInput | None, request_id: str) -> Prompt:
    """A raw prompt of text and media parts.

    Raises:
        InvalidRequest: a part that is neither, or that the model does not take.
    """
    wanted: list[MediaPart] = []
    texts: list[str | int] = []
    for index, item in enumerate(parts.items):
        at = f"prompt[{index}]"
        fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if fields.get("type") in MEDIA_TYPES:
            texts.append(len(wanted))
            wanted.append(media_part(fields, at))
        elif fields.get("type") == "text" and isinstance(fields.get("text"), str):
            texts.append(fields["text"])
        else:
            raise InvalidRequest(f"{at} must be a text or media part, got {repr(item)[:60]}", param=at)
    loaded = await load_media(model, wanted, media, request_id)
    spec = model.media

    def encode() -> Prompt:
        if spec is None:
            return Prompt(model.tokenizer.prompt_ids("".join(map(str, texts))))
        places = [spec.tokens[loaded[t].kind].soft if isinstance(t, int) else t for t in texts]
        ids = model.tokenizer.prompt_ids(expand("".join(places), spec, loaded))
        filled, spans = fill(ids, spec, loaded)
        return Prompt(filled, spans, loaded)

    prompt = await asyncio.to_thread(encode)
    if not prompt.ids:
        raise InvalidRequest("prompt has no tokens", param="prompt")
    return prompt
