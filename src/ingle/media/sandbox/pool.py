"""Decoding processes, kept warm: one job each at a time, ended at the deadline and replaced.

A crash, a hang or a garbled answer costs one request its picture and nobody else anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ingle.config import MediaConfig
from ingle.contracts.media import MediaObserver, NoObserver
from ingle.errors import EngineError, EngineStopped, MediaRefused
from ingle.media.sandbox import wire

_START_S = 60.0
_JOBS_EACH = 500  # then a process is replaced: whatever its decoders leaked goes with it
_MAX_RESULT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Decoded:
    info: dict[str, Any]
    arrays: dict[str, wire.Array] = field(repr=False)


class Sandbox:
    """Processes start with `start`, or with the first job. `close` ends them.

    `command` starts another worker program, for tests; the socket's number is appended.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        observer: MediaObserver | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._config = config
        self._observer = observer or NoObserver()
        # Isolated: neither the working folder nor variables decide which code decodes.
        self._command = list(command or (sys.executable, "-I", "-m", "ingle.media.sandbox.worker"))
        self._threads = ThreadPoolExecutor(config.workers, thread_name_prefix="ingle-decode")
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._all: set[_Worker] = set()
        self._closed = False
        self.peak_bytes = 0  # resident, of the process that took most so far

    def start(self) -> None:
        """Have every process on its way, without waiting for them."""
        while len(self._all) < self._config.workers:
            self._idle.put(self._spawn())

    async def run(self, job: str, data: bytes, options: Mapping[str, Any]) -> Decoded:
        """What `job` makes of `data`. Cancelling ends its process.

        Raises:
            MediaRefused: the data is refused, or decoding it crashed or took too long.
            EngineError: no decoding process can be started.
        """
        task = _Task(job, data, options)
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._work, task)
        try:
            return await future
        except asyncio.CancelledError:
            task.cancel()
            raise

    def protections(self) -> list[str]:
        """By name, what a process is held back by."""
        worker = self._take()
        try:
            return list(worker.ready())
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            workers = list(self._all)
        for worker in workers:
            self._end(worker)

    def _work(self, task: _Task) -> Decoded:
        started = time.monotonic()
        result = "failed"
        worker = self._take()
        try:
            worker.ready()
            if not task.begin(worker):
                result = "cancelled"
                raise MediaRefused("the request was cancelled", code="media_cancelled")
            decoded = self._ask(worker, task)
            result = "decoded"
            return decoded
        except MediaRefused as error:
            if result != "cancelled":
                result = error.code.removeprefix("media_")
            raise
        finally:
            if task.end() and worker.alive and worker.jobs < _JOBS_EACH:
                self._idle.put(worker)
            else:
                self._end(worker)
                with contextlib.suppress(EngineStopped):
                    self._idle.put(self._spawn())
            self._observer.result("decode", result)
            self._observer.phase("decode", time.monotonic() - started)

    def _ask(self, worker: _Worker, task: _Task) -> Decoded:
        try:
            reply, fd = worker.call(task, self._config)
        except TimeoutError:
            worker.kill()
            raise MediaRefused(
                f"decoding took longer than {self._config.decode_timeout_s:g} s",
                code="media_timeout",
                detail="killed at the deadline",
            ) from None
        except (OSError, wire.Garbled) as error:
            worker.kill()
            raise _undecodable(f"the process ended with {worker.exit_code}: {error}") from None
        try:
            peak = reply.get("peak_bytes")
            if isinstance(peak, int):
                self.peak_bytes = max(self.peak_bytes, peak)
            if (refused := reply.get("refused")) is not None:
                raise MediaRefused(
                    str(refused["message"])[:500], code=str(refused["code"]), detail=str(refused["detail"])
                )
            if (failed := reply.get("failed")) is not None:
                worker.kill()  # nobody foresaw this error: who knows what it left behind
                raise _undecodable(str(failed))
            if fd is None or not isinstance(reply.get("info"), dict):
                raise wire.Garbled("an answer without a result")
            return Decoded(reply["info"], wire.read_arrays(reply.get("arrays"), fd))
        except (wire.Garbled, KeyError, TypeError) as error:
            worker.kill()
            raise _undecodable(f"a garbled answer: {error}") from None
        finally:
            if fd is not None:
                os.close(fd)

    def _take(self) -> _Worker:
        if not self._all:
            self.start()
        return self._idle.get()

    def _spawn(self) -> _Worker:
        """Raises EngineStopped: the pool was closed, perhaps while the process was started."""
        worker = _Worker(self._command, self._config)
        with self._lock:
            if not self._closed:
                self._all.add(worker)
                return worker
        worker.kill()
        raise EngineStopped("media are not decoded any more: the server is shutting down")

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._all.discard(worker)


class _Task:
    """One job. Between `begin` and `end` a cancellation kills the process that does it."""

    def __init__(self, job: str, data: bytes, options: Mapping[str, Any]) -> None:
        self.job, self.data, self.options = job, data, options
        self._lock = threading.Lock()
        self._cancelled = False
        self._worker: _Worker | None = None

    def begin(self, worker: _Worker) -> bool:
        with self._lock:
            self._worker = worker
            return not self._cancelled

    def end(self) -> bool:
        """False: the process must not be used again."""
        with self._lock:
            self._worker = None
            return not self._cancelled

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.kill()


class _Worker:
    def __init__(self, command: Sequence[str], config: MediaConfig) -> None:
        self.jobs = 0
        self._ready: list[str] | None = None
        self._connection, theirs = socket.socketpair()
        with theirs:
            environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": os.defpath}
            try:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is the server's to handle
                )
            except OSError as error:
                self._connection.close()
                raise EngineError(f"cannot start a decoding process: {error}") from None
        limits = {"memory_bytes": config.decode_memory_bytes, "file_bytes": _MAX_RESULT_BYTES}
        with contextlib.suppress(OSError):  # it died at once: `ready` says so
            wire.send(self._connection, limits)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def ready(self) -> list[str]:
        """Its protections, once it is up.

        Raises:
            EngineError: it does not come up.
        """
        if self._ready is None:
            self._connection.settimeout(_START_S)
            try:
                self._ready = [str(name) for name in wire.receive(self._connection)[0]["ready"]]
            except (OSError, wire.Garbled, KeyError) as error:
                self.kill()
                raise EngineError(f"a decoding process did not start: {error}") from None
        return self._ready

    def call(self, task: _Task, config: MediaConfig) -> tuple[dict[str, Any], int | None]:
        self.jobs += 1
        self._connection.settimeout(config.decode_timeout_s)
        deadline = time.monotonic() + config.decode_timeout_s
        source = wire.anonymous_file()
        try:
            wire.write_all(source, task.data)
            request = {
                "job": task.job,
                "options": dict(task.options),
                "size": len(task.data),
                "cpu_s": config.decode_cpu_s,
            }
            wire.send(self._connection, request, source)
        finally:
            os.close(source)
        self._connection.settimeout(max(0.01, deadline - time.monotonic()))
        return wire.receive(self._connection)

    def kill(self) -> None:
        """At once. May be called from any thread, and again."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def _undecodable(detail: str) -> MediaRefused:
    return MediaRefused("the data could not be decoded", code="media_undecodable", detail=detail)
