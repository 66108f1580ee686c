"""Blocks of KV in files: they survive restarts, stay below a size, and are believed only when they are whole.

One safetensors file for each block of a prompt, named by the digest of everything before and in it. Its
metadata holds the schema (model, arithmetic, format) and the digest of its content; a file that says
something else, or is cut short, is deleted and counts as absent. Files appear under their name only when
they are complete. Writing happens on a thread of its own; what does not get a turn is not kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np

from ingle.cache.arrays import ArrayBlock
from ingle.contracts.cache import KEY_BLOCK, KVBlock, StateLayout
from ingle.kernels import native

_log = logging.getLogger(__name__)

FORMAT = "ingle-kv-1"
_WAITING = 16  # blocks that may wait to be written
_END = ".safetensors"


class BlockFiles:
    """A folder of blocks. `schema` names everything besides the prompt that decides what is in them."""

    def __init__(self, folder: Path, max_bytes: int, schema: str) -> None:
        self._folder, self._max_bytes, self._schema = folder, max_bytes, f"{FORMAT}/{schema}"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._files: OrderedDict[str, int] = OrderedDict()  # name -> bytes, oldest first; guarded by the lock
        found: list[tuple[float, str, int]] = []
        for path in folder.iterdir():
            if path.suffix == _END and not path.name.startswith("."):
                status = path.stat()
                found.append((status.st_mtime, path.name.removesuffix(_END), status.st_size))
            elif path.name.startswith(".writing-"):
                path.unlink(missing_ok=True)  # left by a process that was killed
        self._files.update((name, size) for _, name, size in sorted(found))
        self._queue: queue.Queue[tuple[str, dict[str, mx.array]] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="ingle-blocks", daemon=True)
        self._thread.start()

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._files

    def wants(self, name: str) -> bool:
        """Whether `save` would keep the block: it is not there, and not too many wait to be written."""
        return name not in self and not self._queue.full()

    def save(self, name: str, pieces: Mapping[str, mx.array]) -> None:
        """Write the block some time soon. `pieces` are evaluated. For one thread, after `wants`."""
        self._queue.put((name, dict(pieces)))

    def load(self, name: str) -> dict[str, mx.array] | None:
        """The block's pieces, or None where there is no sound file. Makes it young."""
        path = self._folder / (name + _END)
        try:
            loaded = cast(
                "tuple[dict[str, mx.array], dict[str, str]]",
                mx.load(str(path), format="safetensors", return_metadata=True),
            )
            pieces, metadata = loaded
            mx.eval(pieces)
            if metadata.get("schema") != self._schema:
                raise ValueError(f"it is of schema {metadata.get('schema')!r}")
            if metadata.get("digest") != _digest(pieces):
                raise ValueError("its digest does not match")
            os.utime(path)
        except FileNotFoundError:
            self._forget(name)
            return None
        except (OSError, ValueError, RuntimeError) as error:
            _log.warning("%s is not used and goes: %s", path.name, error)
            path.unlink(missing_ok=True)
            self._forget(name)
            return None
        with self._lock:
            if name in self._files:
                self._files.move_to_end(name)
        return pieces

    def close(self) -> None:
        """Write what waits, then end."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        with mx.stream(mx.new_stream(mx.Device(mx.cpu))):
            while (item := self._queue.get()) is not None:
                name, pieces = item
                try:
                    self._write(name, pieces)
                except (OSError, RuntimeError) as error:
                    _log.warning("block %s could not be kept: %s", name, error)

    def _write(self, name: str, pieces: dict[str, mx.array]) -> None:
        unfinished = self._folder / f".writing-{os.getpid()}-{name}{_END}"
        metadata = {"schema": self._schema, "digest": _digest(pieces)}
        mx.save_safetensors(str(unfinished), pieces, metadata)
        size = unfinished.stat().st_size
        if size > self._max_bytes:
            unfinished.unlink()
            return
        os.replace(unfinished, self._folder / (name + _END))
        with self._lock:
            self._files[name] = size
            total = sum(self._files.values())
            old = []
            while total > self._max_bytes:
                oldest, nbytes = self._files.popitem(last=False)
                old.append(oldest)
                total -= nbytes
        for oldest in old:
            (self._folder / (oldest + _END)).unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)


def _digest(pieces: Mapping[str, mx.array]) -> str:
    """Over names, types, shapes and bytes of all pieces."""
    total = hashlib.sha256()
    for name, piece in sorted(pieces.items()):
        total.update(f"{name} {piece.dtype} {piece.shape};".encode())
        total.update(np.array(piece.view(mx.uint8)).tobytes())
    return total.hexdigest()


def pack_block(kind: int, block: KVBlock) -> dict[str, mx.array]:
    """A block as arrays that a file can hold, named after its kind."""
    if isinstance(block, ArrayBlock):
        named = [(f"{kind}.{i}", pair) for i, pair in enumerate(block.layers)]
        return {f"{name}.{part}": pair[i] for name, pair in named for i, part in enumerate("kv")}
    return {f"{kind}.raw": mx.array(np.frombuffer(bytes(cast("native.cpu.KVBlock", block)), np.uint8))}


def unpack_block(layout: StateLayout, kind: int, pieces: Mapping[str, mx.array]) -> KVBlock | None:
    """The block that `pack_block` took apart; None where the pieces hold none of this kind.

    Raises:
        ValueError: the pieces do not fit the layout.
    """
    k = layout.kinds[kind]
    if (raw := pieces.get(f"{kind}.raw")) is not None:
        table = native.cpu.KVTable(k.layers, k.kv_heads, k.head_dim, False)
        return table.block_from(np.array(raw).tobytes())
    if f"{kind}.0.k" not in pieces:
        return None
    shape = (1, k.kv_heads, KEY_BLOCK, k.head_dim)
    layers: list[tuple[mx.array, mx.array]] = []
    for i in range(k.layers):
        keys, values = pieces.get(f"{kind}.{i}.k"), pieces.get(f"{kind}.{i}.v")
        if keys is None or values is None or keys.shape != shape or values.shape != shape:
            raise ValueError(f"layer {i} of kind {kind} is missing or not of shape {shape}")
        layers.append((keys, values))
    return ArrayBlock(tuple(layers))


def unpack_carried(layout: StateLayout, pieces: Mapping[str, mx.array]) -> tuple[mx.array, ...] | None:
    """What recurrent layers carry behind the block; None where the pieces do not hold it.

    Raises:
        ValueError: the pieces do not fit the layout.
    """
    values = [pieces.get(f"carried.{i}") for i in range(len(layout.recurrent))]
    there = [value for value in values if value is not None]
    if len(there) < len(values) or not there:
        return None
    for value, shape in zip(there, layout.recurrent, strict=True):
        if value.shape != (1, *shape):
            raise ValueError(f"a carried state is {value.shape}, expected {(1, *shape)}")
    return tuple(there)


def chain_digest(before: bytes, key: Sequence[object]) -> bytes:
    """The name of a block: what is before it, and what it holds itself."""
    return hashlib.sha256(before + repr(key).encode()).digest()
