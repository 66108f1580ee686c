"""Read safetensors files lazily: one file or a sharded index, each header checked against its file."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from ingle.errors import CheckpointError

_MAX_HEADER_BYTES = 100 * 1024 * 1024  # the format's own limit
_MAX_DIMS = 8
_DTYPES: Mapping[str, tuple[str, int]] = {
    "F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2), "F64": ("<f8", 8),
    "U8": ("<u1", 1), "I8": ("<i1", 1), "U16": ("<u2", 2), "I16": ("<i2", 2),
    "U32": ("<u4", 4), "I32": ("<i4", 4), "U64": ("<u8", 8), "I64": ("<i8", 8), "BOOL": ("<u1", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    nbytes: int
    file: mmap.mmap


class SafetensorsFolder:
    """All tensors of a model folder: `model.safetensors`, or the shards that its index names.

    Raises:
        CheckpointError: a file is missing, cut short, inconsistent or points outside the folder;
            the message names the file and the tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[str, _Entry] = {}
        index = folder / "model.safetensors.index.json"
        if not index.is_file():
            self._entries = _read_header(folder / "model.safetensors")
            return
        where = _weight_map(index)
        shards = {shard: _read_header(folder / shard) for shard in sorted(set(where.values()))}
        for name, shard in where.items():
            if name not in shards[shard]:
                raise CheckpointError(f"{index}: tensor {name!r} is not in {shard}")
            self._entries[name] = shards[shard][name]

    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def has(self, name: str) -> bool:
        return name in self._entries

    def dtype(self, name: str) -> str:
        return self._entry(name).dtype

    def read(self, name: str) -> mx.array:
        """The tensor in its own dtype.

        Raises:
            CheckpointError: it is missing.
        """
        entry = self._entry(name)
        count = entry.nbytes // _DTYPES[entry.dtype][1]
        flat = np.frombuffer(entry.file, _DTYPES[entry.dtype][0], count, entry.start)
        array = mx.array(flat.astype(np.float32) if entry.dtype == "F64" else flat)
        if entry.dtype == "BF16":  # NumPy has no bfloat16: hand its bits over
            array = array.view(mx.bfloat16)
        return array.reshape(entry.shape)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self._folder}: tensor {name!r} is missing")
        return entry


def _weight_map(index: Path) -> dict[str, str]:
    content = read_json(index)
    where = content.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(f"{index}: weight_map is missing or not an object")
    for name, shard in cast("dict[str, Any]", where).items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index}: tensor {name!r} points to {shard!r}, not a file of this folder")
    return cast("dict[str, str]", where)


def _read_header(path: Path) -> dict[str, _Entry]:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
    size = len(data)
    if size < 8:
        raise CheckpointError(f"{path}: {size} bytes are too few for a safetensors file")
    length = struct.unpack_from("<Q", data)[0]
    if length > min(_MAX_HEADER_BYTES, size - 8):
        raise CheckpointError(f"{path}: the header claims {length} bytes, the file has {size} (cut short?)")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not an object")
    entries: dict[str, _Entry] = {}
    for name, info in cast("dict[str, Any]", header).items():
        if name != "__metadata__":
            entries[name] = _entry(path, name, info, 8 + length, data)
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start < end:
            raise CheckpointError(f"{path}: tensor {name!r} overlaps the tensor before it")
        end = entry.start + entry.nbytes
    return entries


def _entry(path: Path, name: str, info: object, data_start: int, data: mmap.mmap) -> _Entry:
    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {name!r}: {problem}")

    if not isinstance(info, dict):
        raise fail("its entry is not an object")
    fields = cast("dict[str, Any]", info)
    dtype = fields.get("dtype")
    shape, offsets = _naturals(fields.get("shape")), _naturals(fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise fail(f"dtype {dtype!r} is not supported, {', '.join(_DTYPES)} are")
    if shape is None or len(shape) > _MAX_DIMS:
        raise fail(f"shape {str(fields.get('shape'))[:80]} is not a list of at most {_MAX_DIMS} sizes")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets {str(fields.get('data_offsets'))[:80]} are not two rising offsets")
    nbytes = _DTYPES[dtype][1]
    for dim in shape:
        nbytes *= dim  # Python integers: nothing wraps
    if nbytes != offsets[1] - offsets[0]:
        raise fail(f"{dtype} {shape} takes {nbytes} bytes, data_offsets span {offsets[1] - offsets[0]}")
    if data_start + offsets[1] > len(data):
        raise fail(f"needs bytes up to {data_start + offsets[1]}, the file has {len(data)} (cut short?)")
    return _Entry(dtype, tuple(shape), data_start + offsets[0], nbytes, data)


def _naturals(value: Any) -> list[int] | None:
    """`value` if it is a list of whole numbers from 0."""
    if not isinstance(value, list):
        return None
    items = cast("list[Any]", value)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in items)
    return items if whole else None


def read_json(path: Path, max_bytes: int = 64 * 1024 * 1024) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: unreadable, over `max_bytes`, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > max_bytes:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, the limit is {max_bytes}")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(content).__name__}")
    return cast("dict[str, Any]", content)
