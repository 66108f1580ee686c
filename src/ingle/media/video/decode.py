"""A clip as a few upright RGB frames with the times they are shown at. Runs in a decoding process.

Frames are chosen by what really decodes: headers leave counts out or lie. Times are the frames' own,
from the first one on, so that clips of a variable rate are told apart from those of a constant one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.stream import Disposition

from ingle.errors import MediaRefused
from ingle.media.audio.decode import open_container
from ingle.media.image.decode import RGB, ImageLimits, opened, to_rgb
from ingle.media.sniff import sniff, undecodable

T = TypeVar("T")
_DEFAULT_FPS = 24.0  # as the reference assumes where the container does not say
_MIN_DELAY_MS, _DEFAULT_DELAY_MS = 11, 100  # browsers show faster GIF frames for 100 ms


@dataclass(frozen=True, slots=True)
class ClipLimits:
    image: ImageLimits
    max_frames: int
    max_video_pixels: int

    def check(self, frames: int, pixels: int) -> None:
        """Raises MediaRefused: too much to decode; names the sum and the limit."""
        if frames > self.max_frames:
            raise MediaRefused(
                f"the clip has {frames} frames, the limit is {self.max_frames}", code="media_too_large"
            )
        if frames * pixels > self.max_video_pixels:
            raise MediaRefused(
                f"the clip has {frames} frames of {pixels} pixels, the limit is {self.max_video_pixels}",
                code="media_too_large",
            )


@dataclass(frozen=True, slots=True)
class Clip(Generic[T]):
    frames: list[T]  # of the chosen frames, what `keep` made
    times: list[float]  # seconds from the first frame, one for each
    total: int  # frames that decoded
    width: int  # upright
    height: int
    format: str  # container and codec
    has_sound: bool


def chosen_indices(total: int, count: int) -> list[int]:
    """`count` frames spread over `total` (i * total // count, as the reference); all if there are fewer."""
    if total <= count:
        return list(range(total))
    return [i * total // count for i in range(count)]


def decode_clip(
    data: bytes | memoryview, limits: ClipLimits, count: int, keep: Callable[[RGB], T]
) -> Clip[T]:
    """`count` frames of a clip or an animated picture, or all there are if it has fewer.

    Raises:
        MediaRefused: no pictures in there, a format that is not taken, too much of it, or broken.
    """
    if sniff(data).kind == "image":
        return _animation(data, limits, count, keep)
    return _container(data, limits, count, keep)


def _animation(data: bytes | memoryview, limits: ClipLimits, count: int, keep: Callable[[RGB], T]) -> Clip[T]:
    with opened(data, limits.image) as image:
        total = int(getattr(image, "n_frames", 1))
        limits.check(total, image.width * image.height)
        wanted, frames, times, now_ms = set(chosen_indices(total, count)), list[T](), list[float](), 0.0
        for index in range(total):
            image.seek(index)
            if index in wanted:
                frames.append(keep(to_rgb(image)))
                times.append(now_ms / 1000)
            else:
                image.load()
            delay = float(image.info.get("duration") or 0)
            now_ms += delay if delay >= _MIN_DELAY_MS else _DEFAULT_DELAY_MS
        return Clip(frames, times, total, image.width, image.height, str(image.format), False)


def _container(data: bytes | memoryview, limits: ClipLimits, count: int, keep: Callable[[RGB], T]) -> Clip[T]:
    indices = chosen_indices(_packets(data, limits), count)
    clip = _pass(data, limits, indices, keep)
    if clip.total == 0:
        raise MediaRefused("the clip has no frames", code="media_empty")
    if (decoded := chosen_indices(clip.total, count)) != indices:
        # Another number of frames decodes than the container holds: choose among those.
        return _pass(data, limits, decoded, keep)
    return clip


@contextlib.contextmanager
def _pictures(data: bytes | memoryview) -> Generator[tuple[InputContainer, av.VideoStream]]:
    try:
        with open_container(data, sniff(data)) as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise MediaRefused("the data holds no moving pictures", code="media_wrong_kind")
            streams[0].codec_context.thread_count = 1
            yield container, streams[0]
    except (av.error.FFmpegError, OSError, ValueError, EOFError) as error:
        raise undecodable("clip", error) from None


def _packets(data: bytes | memoryview, limits: ClipLimits) -> int:
    """Frames that the container seems to hold, without decoding any."""
    total = 0
    with _pictures(data) as (container, stream):
        context = stream.codec_context
        if context.width and context.height:
            limits.image.check(context.width, context.height, "clip")
        with contextlib.suppress(av.error.FFmpegError, OSError, EOFError):
            for packet in container.demux(stream):
                if packet.size:
                    total += 1
                    limits.check(total, context.width * context.height)
    return total


def _pass(
    data: bytes | memoryview, limits: ClipLimits, indices: list[int], keep: Callable[[RGB], T]
) -> Clip[T]:
    """Decode it all and keep what `keep` makes of the frames at `indices`."""
    wanted, frames, times, total, first = set(indices), list[T](), list[float](), 0, None
    width = height = 0
    with _pictures(data) as (container, stream):
        rate = float(stream.average_rate or 0) or _DEFAULT_FPS
        codec = stream.codec_context.codec.name
        has_sound = bool(container.streams.audio)
        # What decoded before a damaged packet is kept.
        with contextlib.suppress(av.error.FFmpegError, OSError, EOFError, ValueError):
            for frame in container.decode(stream):
                limits.image.check(frame.width, frame.height, "clip")
                limits.check(total + 1, frame.width * frame.height)
                time = total / rate if frame.pts is None else float(frame.time)
                first = time if first is None else first
                if total in wanted:
                    shown = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
                    rgb = np.rot90(shown, k=round(frame.rotation / 90) % 4)
                    height, width = rgb.shape[:2]
                    frames.append(keep(np.ascontiguousarray(rgb)))
                    times.append(max(time - first, times[-1] if times else 0.0))
                total += 1
    return Clip(frames, times, total, width, height, f"{container.format.name}/{codec}", has_sound)
