"""Read a GGUF file: metadata and tensor table, every number checked against the file before use.

Layout (the public "GGUF" specification, versions 2 and 3, little endian): magic, version, counts,
key-value pairs, tensor table, padding to `general.alignment`, tensor data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingle.errors import CheckpointError
from ingle.weights.gguf_blocks import BLOCK_TYPES, BlockType

_MAX_PAIRS = 65_536
_MAX_TENSORS = 1_000_000
_MAX_NAME_BYTES = 1024
_MAX_STRING_BYTES = 16 * 1024 * 1024
_MAX_ARRAY_ITEMS = 16 * 1024 * 1024
_MAX_METADATA_BYTES = 256 * 1024 * 1024
_MAX_NESTING = 4
_MAX_DIMS = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table. `shape` is in NumPy's order: [outputs, inputs] for a matrix."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    start: int  # in the file
    nbytes: int


class GGUFFile:
    """A checked, memory-mapped GGUF file.

    Raises:
        CheckpointError: not a GGUF file, a version or type we do not read, cut short, or
            inconsistent; the message names the file and the key or tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
            raise CheckpointError(f"cannot read {path}: {error}") from None
        reader = _Reader(self._map, str(path))
        self.metadata, tensors = _read_header(reader)
        self.tensors: Mapping[str, GGUFTensor] = _place(tensors, reader, self.metadata)

    def data(self, tensor: GGUFTensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes, uint8 [nbytes], not copied."""
        return np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.start)


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self.data, self.path, self.at, self.size = data, path, 0, len(data)
        self.what = "header"

    def fail(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.what}: {problem}")

    def take(self, count: int) -> int:
        """Claim `count` bytes; gives where they start."""
        start = self.at
        if count > self.size - start:
            raise self.fail(f"needs {count} bytes at offset {start}, the file has {self.size}")
        if start + count > _MAX_METADATA_BYTES:
            raise self.fail(f"metadata is over {_MAX_METADATA_BYTES} bytes")
        self.at = start + count
        return start

    def number(self, code: str) -> int:
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code)))[0]

    def string(self, limit: int = _MAX_STRING_BYTES) -> str:
        length = self.number("Q")
        if length > limit:
            raise self.fail(f"a string of {length} bytes, the limit is {limit}")
        start = self.take(length)
        # Vocabularies hold tokens that are not valid UTF-8 on their own: keep their bytes.
        return self.data[start : start + length].decode("utf-8", "surrogateescape")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth)
        return self._numbers(kind, 1)[0]

    def _array(self, depth: int) -> list[Any]:
        if depth >= _MAX_NESTING:
            raise self.fail(f"arrays nested deeper than {_MAX_NESTING}")
        kind, count = self.number("I"), self.number("Q")
        if count > _MAX_ARRAY_ITEMS:
            raise self.fail(f"an array of {count} items, the limit is {_MAX_ARRAY_ITEMS}")
        if kind in _SCALARS:
            return self._numbers(kind, count)
        if count * 8 > self.size - self.at:  # even empty strings and arrays take 8 bytes each
            raise self.fail(f"an array of {count} items cannot fit the rest of the file")
        return [self.value(kind, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        code = _SCALARS.get(kind)
        if code is None:
            raise self.fail(f"unknown value type {kind}")
        dtype = np.dtype(code)
        values = np.frombuffer(self.data, dtype, count, self.take(dtype.itemsize * count))
        return (values != 0).tolist() if kind == _BOOL else values.tolist()


def _read_header(reader: _Reader) -> tuple[dict[str, Any], list[GGUFTensor]]:
    magic = reader.data[reader.take(4) : reader.at]
    if magic != b"GGUF":
        raise reader.fail(f"not a GGUF file, it begins with {magic!r}")
    version = reader.number("I")
    if version not in (2, 3):
        raise reader.fail(f"GGUF version {version} is not supported, 2 and 3 are")
    tensor_count, pair_count = reader.number("Q"), reader.number("Q")
    if tensor_count > _MAX_TENSORS or pair_count > _MAX_PAIRS:
        raise reader.fail(
            f"{tensor_count} tensors and {pair_count} keys, the limits are {_MAX_TENSORS} and {_MAX_PAIRS}"
        )
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = reader.string(_MAX_NAME_BYTES)
        reader.what = f"key {key!r}"
        if key in metadata:
            raise reader.fail("occurs twice")
        metadata[key] = reader.value(reader.number("I"))
    tensors = [_read_tensor(reader) for _ in range(tensor_count)]
    return metadata, tensors


def _read_tensor(reader: _Reader) -> GGUFTensor:
    reader.what = "tensor table"
    name = reader.string(_MAX_NAME_BYTES)
    reader.what = f"tensor {name!r}"
    dims = reader.number("I")
    if not 1 <= dims <= _MAX_DIMS:
        raise reader.fail(f"has {dims} dimensions, 1 to {_MAX_DIMS} are allowed")
    shape = tuple(reader.number("Q") for _ in range(dims))[::-1]
    kind, offset = reader.number("I"), reader.number("Q")
    block = BLOCK_TYPES.get(kind)
    if block is None:
        known = ", ".join(b.name for b in BLOCK_TYPES.values())
        raise reader.fail(f"has data type {kind}, supported are {known}")
    items = 1
    for size in shape:
        items *= size  # Python integers: nothing wraps
    if items == 0 or shape[-1] % block.items:
        raise reader.fail(f"shape {shape} does not fill blocks of {block.items} ({block.name})")
    return GGUFTensor(name, shape, block, offset, items // block.items * block.nbytes)


def _place(tensors: list[GGUFTensor], reader: _Reader, metadata: dict[str, Any]) -> dict[str, GGUFTensor]:
    """Turn offsets into file positions; refuse what overlaps or leaves the file."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise CheckpointError(f"{reader.path}: general.alignment is {alignment!r}, expected a power of two")
    start = -(-reader.at // alignment) * alignment
    placed: dict[str, GGUFTensor] = {}
    end = start
    for tensor in sorted(tensors, key=lambda t: t.start):
        where = start + tensor.start
        problem = None
        if tensor.name in placed:
            problem = "occurs twice"
        elif tensor.start % alignment:
            problem = f"offset {tensor.start} is not a multiple of {alignment}"
        elif where < end:
            problem = f"offset {tensor.start} overlaps the tensor before it"
        elif where + tensor.nbytes > reader.size:
            problem = f"needs bytes up to {where + tensor.nbytes}, the file has {reader.size} (cut short?)"
        if problem is not None:
            raise CheckpointError(f"{reader.path}: tensor {tensor.name!r}: {problem}")
        placed[tensor.name] = GGUFTensor(tensor.name, tensor.shape, tensor.type, where, tensor.nbytes)
        end = where + tensor.nbytes
    return placed
