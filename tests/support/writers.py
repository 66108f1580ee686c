"""Write small GGUF and safetensors files, good ones and bad ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    match item:
        case bool():
            return struct.pack("<IB", BOOL, item)
        case int():
            return struct.pack("<II", U32, item)
        case float():
            return struct.pack("<If", F32, item)
        case str():
            return struct.pack("<I", STRING) + text(item)
        case list():
            inner = [value(x) for x in item]
            kind = inner[0][:4] if inner else struct.pack("<I", U32)
            return (
                struct.pack("<I", ARRAY)
                + kind
                + struct.pack("<Q", len(item))
                + b"".join(x[4:] for x in inner)
            )
        case _:
            raise TypeError(item)


def gguf(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """`tensors`: name -> (shape in NumPy's order, type number, data)."""
    table, data = b"", b""
    for name, (shape, kind, raw) in tensors.items():
        table += text(name) + struct.pack("<I", len(shape))
        table += b"".join(struct.pack("<Q", n) for n in shape[::-1]) + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items()) + table
    return head + b"\0" * (-len(head) % 32) + data


def safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    names = {"float32": "F32", "float16": "F16", "uint32": "U32", "int32": "I32"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": [len(data), end],
        }  # fmt: skip
        data += array.tobytes()
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
