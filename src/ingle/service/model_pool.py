"""Several models behind one port: loaded when they are asked for, unloaded when others need their place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ingle.errors import EngineStopped, IngleError, NotFound, QueueFull
from ingle.service.models import TextModel

_log = logging.getLogger(__name__)

WAIT_S = 60.0  # for a place, while all loaded models are in use


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A loaded model, and what ends it."""

    model: TextModel
    close: Callable[[], None]


@dataclass(slots=True)
class Place:
    """A model that is served, loaded or not. `load` blocks; it may be called again after `close`."""

    name: str
    load: Callable[[], OpenModel]
    opened: OpenModel | None = None
    loading: asyncio.Task[None] | None = None  # everybody who needs it waits for the same one
    users: int = 0  # requests that hold it, or wait for it
    used: float = 0.0  # monotonic time of the last one
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def idle(self) -> bool:
        return self.opened is not None and self.users == 0


class ModelPool:
    """At most `limit` models are loaded at once. Lives on one event loop once it is used.

    A request holds its model from `acquire` to `release`: it is not unloaded in between.
    """

    def __init__(
        self, places: Sequence[Place], *, limit: int | None = None, idle_s: float | None = None
    ) -> None:
        """`idle_s`: a model that nobody used for so long is unloaded; None: never."""
        self._places = {place.name: place for place in places}
        self._limit = len(places) if limit is None else limit
        self._idle_s = idle_s
        self._lock = asyncio.Lock()  # one model is loaded or unloaded at a time
        self._freed = asyncio.Event()  # somebody stopped using a model
        self._reaper: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, *models: TextModel) -> ModelPool:
        """Models that are loaded already and stay so."""

        def never() -> OpenModel:
            raise EngineStopped("a model that was closed is not loaded again")

        def nothing() -> None:
            pass

        return cls([Place(model.name, never, OpenModel(model, nothing)) for model in models])

    @property
    def places(self) -> Sequence[Place]:
        return tuple(self._places.values())

    @property
    def loaded(self) -> list[TextModel]:
        return [place.opened.model for place in self.places if place.opened is not None]

    def place(self, name: str) -> Place:
        """Raises NotFound: it is not served here."""
        found = self._places.get(name)
        if found is None:
            served = ", ".join(self._places)
            raise NotFound(f"model {name[:200]!r} is not served here; served: {served}", param="model")
        return found

    async def acquire(self, name: str) -> TextModel:
        """The model, loaded and held.

        Raises:
            NotFound: it is not served here.
            QueueFull: all places are in use, for longer than a request waits.
            EngineStopped: it could not be loaded.
        """
        place = self.place(name)
        place.users += 1  # from here on nobody unloads it
        try:
            if place.opened is None:
                await asyncio.shield(self._loading(place))
            assert place.opened is not None
        except BaseException:
            self.release(name)
            raise
        self._watch()
        return place.opened.model

    def release(self, name: str) -> None:
        place = self._places[name]
        place.users -= 1
        place.used = time.monotonic()
        if place.users == 0:
            self._freed.set()

    async def unload(self, name: str) -> bool:
        """Whether it was loaded. A model in use is unloaded when its last request ends.

        Raises:
            NotFound: it is not served here.
            QueueFull: it stays in use for longer than a request waits.
        """
        place = self.place(name)
        if place.opened is None:
            return False
        await self._until(lambda: place.users == 0, f"model {name!r} is in use")
        async with self._lock:
            if place.idle:
                await self._close(place)
        return True

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaper

    def _loading(self, place: Place) -> asyncio.Task[None]:
        if place.loading is None:

            def ended(task: asyncio.Task[None]) -> None:
                place.loading = None
                if not task.cancelled():
                    task.exception()  # whoever waits has it too; perhaps nobody does any more

            place.loading = asyncio.create_task(self._load(place))
            place.loading.add_done_callback(ended)
        return place.loading

    async def _load(self, place: Place) -> None:
        async with self._lock:
            await self._until(
                lambda: self._room() or any(p.idle for p in self.places),
                f"all {self._limit} loaded models are in use",
            )
            if not self._room():
                oldest = min((p for p in self.places if p.idle), key=lambda p: p.used)
                await self._close(oldest)
            started = time.monotonic()
            try:
                place.opened = await asyncio.to_thread(place.load)
            except IngleError as error:
                raise EngineStopped(f"model {place.name!r} could not be loaded: {error}") from error
            _log.info("loaded %s in %.1f s", place.name, time.monotonic() - started)

    def _room(self) -> bool:
        return sum(place.opened is not None for place in self.places) < self._limit

    async def _until(self, ready: Callable[[], bool], why: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not ready():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise QueueFull(f"{why}; try again later") from None

    async def _close(self, place: Place) -> None:
        opened, place.opened = place.opened, None
        assert opened is not None
        await asyncio.to_thread(opened.close)
        _log.info("unloaded %s", place.name)

    def _watch(self) -> None:
        if self._idle_s is not None and self._reaper is None:
            self._reaper = asyncio.create_task(self._reap(self._idle_s))

    async def _reap(self, idle_s: float) -> None:
        while True:
            await asyncio.sleep(min(1.0, idle_s / 4))
            async with self._lock:
                for place in self.places:
                    if place.idle and time.monotonic() - place.used > idle_s:
                        await self._close(place)
