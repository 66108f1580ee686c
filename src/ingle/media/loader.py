"""All media of one request, fetched and decoded side by side under one deadline and one set of limits."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ingle.config import MediaConfig
from ingle.contracts.media import Block, LoadedMedia, MediaKind, MediaObserver, MediaPart, MediaSpec
from ingle.errors import MediaRefused
from ingle.media.data_url import decode_base64, decode_data_url, is_data_url
from ingle.media.fetch import Fetcher
from ingle.media.local import is_file_url, read_local
from ingle.media.sandbox.pool import Decoded, Sandbox
from ingle.media.sandbox.wire import Array
from ingle.media.settings import limits
from ingle.media.sniff import sniff
from ingle.media.video.labels import time_label

_FETCHES_AT_ONCE = 4  # of one request
_PATCH, _CELL = 16, 48


class MediaLoader:
    """One for a server. `close` ends its decoding processes."""

    def __init__(
        self,
        config: MediaConfig,
        *,
        observer: MediaObserver | None = None,
        fetcher: Fetcher | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._config = config
        self._fetcher = fetcher or Fetcher(config.fetch, observer=observer)
        self.sandbox = sandbox or Sandbox(config, observer=observer)

    def close(self) -> None:
        self.sandbox.close()

    async def load(
        self, parts: Sequence[MediaPart], spec: MediaSpec, request_id: str = ""
    ) -> list[LoadedMedia]:
        """The parts in their order. The first refusal ends the rest.

        Raises:
            MediaRefused: names the part in `param`.
            QueueFull: too many fetches wait.
        """
        if len(parts) > self._config.max_items:
            raise MediaRefused(
                f"the request has {len(parts)} pieces of media, the limit is {self._config.max_items}",
                param=parts[self._config.max_items].where,
                code="media_too_many",
            )
        request = _Request(self._config, self._fetcher, self.sandbox, spec, request_id)
        try:
            async with asyncio.timeout(self._config.timeout_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(request.part(part)) for part in parts]
        except TimeoutError:
            raise MediaRefused(
                f"the media of the request took longer than {self._config.timeout_s:g} s",
                code="media_timeout",
            ) from None
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            await request.close()
        return [task.result() for task in tasks]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


class _Request:
    """What the parts of one request share."""

    def __init__(
        self, config: MediaConfig, fetcher: Fetcher, sandbox: Sandbox, spec: MediaSpec, request_id: str
    ) -> None:
        self._config, self._fetcher, self._sandbox = config, fetcher, sandbox
        self._spec, self._id = spec, request_id
        self._turns = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._fetches: dict[tuple[str, int], asyncio.Task[bytes]] = {}
        self._bytes = self._soft_tokens = 0

    async def part(self, part: MediaPart) -> LoadedMedia:
        try:
            data = await self._data(part)
            self._bytes += len(data)
            if self._bytes > self._config.max_total_bytes:
                raise MediaRefused(
                    f"the media of the request have more than {self._config.max_total_bytes} bytes",
                    code="media_too_large",
                )
            kind = part.kind or self._kind_of(data)
            loaded = await self._decoded(part, kind, data)
            self._soft_tokens += loaded.soft_tokens
            if self._soft_tokens > self._config.max_soft_tokens:
                raise MediaRefused(
                    f"the media of the request take more than {self._config.max_soft_tokens} tokens",
                    code="media_too_large",
                )
        except MediaRefused as error:
            if error.param is not None:
                raise
            raise MediaRefused(
                f"{part.where}: {error.message}", param=part.where, code=error.code, detail=error.detail
            ) from None
        return loaded

    async def close(self) -> None:
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)

    async def _data(self, part: MediaPart) -> bytes:
        policy = self._config.fetch
        cap = policy.max_video_bytes if part.kind == "video" else policy.max_bytes
        if part.base64 is not None:
            return await asyncio.to_thread(decode_base64, part.base64, cap)
        url = part.url or ""
        if is_data_url(url):
            return await asyncio.to_thread(decode_data_url, url, cap)
        if is_file_url(url):
            return await asyncio.to_thread(read_local, url, policy.media_root, cap)
        task = self._fetches.get((url, cap))
        if task is None:  # equal URLs are fetched once
            task = self._fetches[url, cap] = asyncio.create_task(self._fetch(url, cap))
        return await task

    async def _fetch(self, url: str, cap: int) -> bytes:
        async with self._turns:
            return (await self._fetcher.fetch(url, max_bytes=cap, request_id=self._id)).data

    def _kind_of(self, data: bytes) -> MediaKind:
        found = sniff(data).kind
        if found == "media":
            return "video" if "video" in self._spec.tokens else "audio"
        if found not in self._spec.tokens:
            raise MediaRefused(
                f"the file holds {found}, which this model does not take", code="media_wrong_kind"
            )
        return found

    async def _decoded(self, part: MediaPart, kind: MediaKind, data: bytes) -> LoadedMedia:
        spec = self._spec
        options: dict[str, Any] = {"towers": spec.towers, "window": "reference"}
        if kind != "audio":
            options |= {
                "budget": (part.budget or spec.image_budget) if kind == "image" else spec.frame_budget,
                "patch": _PATCH if spec.towers else _CELL,
                "fast_jpeg": self._config.fast_jpeg,
                "frames": spec.clip_frames,
                "sound": part.sound,
            }
        decoded = await self._sandbox.run(kind, data, {**options, "limits": limits(self._config)})
        build = {"image": _image, "audio": _audio, "video": _video}[kind]
        blocks, truncated = await asyncio.to_thread(build, decoded, options)
        return LoadedMedia(part, kind, tuple(blocks), truncated)


def _image(decoded: Decoded, settings: Mapping[str, Any]) -> tuple[list[Block], bool]:
    return [_block("image", decoded.info["soft_tokens"], decoded.arrays, settings)], False


def _audio(decoded: Decoded, settings: Mapping[str, Any]) -> tuple[list[Block], bool]:
    info = decoded.info
    return [_block("audio", info["soft_tokens"], decoded.arrays, settings)], bool(info["truncated"])


def _video(decoded: Decoded, settings: Mapping[str, Any]) -> tuple[list[Block], bool]:
    info, blocks, truncated, at = decoded.info, list[Block](), False, 0
    cells = 9 if settings["towers"] else 1
    for time, count in zip(info["times"], info["frame_tokens"], strict=True):
        frame = {name: decoded.arrays[name][at : at + count * cells] for name in ("patches", "positions")}
        blocks.append(_block("video", count, frame, settings, time_label(time)))
        at += count * cells
    if (sound := info.get("sound")) is not None:
        arrays = {k.removeprefix("sound_"): a for k, a in decoded.arrays.items() if k.startswith("sound_")}
        blocks.append(_block("audio", sound["soft_tokens"], arrays, settings))
        truncated = bool(sound["truncated"])
    return blocks, truncated


def _block(
    kind: MediaKind, tokens: int, arrays: Mapping[str, Array], settings: Mapping[str, Any], label: str = ""
) -> Block:
    """Keyed here and not where a stranger's bytes were decoded: a forged key would be somebody else's."""
    hashed = hashlib.sha256(json.dumps([kind, tokens, settings], sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(array.data if array.size else b"")
    return Block(kind, tokens, hashed.digest(), dict(arrays), label)
