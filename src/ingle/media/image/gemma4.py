"""Gemma 4's picture preprocessing, bit for bit that of transformers' Pillow image processor.

A picture is scaled to fill its budget of soft tokens, both sides to multiples of 48 pixels, and cut
into patches of 16; the tower pools 3 x 3 of them into one soft token. The model without towers takes
patches of 48 as they are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from ingle.errors import MediaRefused
from ingle.media.image.decode import RGB

BUDGETS = (70, 140, 280, 560, 1120)
PATCH, POOL = 16, 3
CELL = PATCH * POOL
# pixel / 255 as the references compute it: with Pillow multiplied in float64 and then rounded; the
# processor of the model without towers multiplies in float32, which differs by one unit in the last place.
_UNIT = {
    PATCH: (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32),
    CELL: np.arange(256, dtype=np.float32) * np.float32(1 / 255),
}


def target_size(height: int, width: int, budget: int) -> tuple[int, int]:
    """(height, width) in pixels: multiples of 48, as large as `budget` soft tokens allow.

    Raises:
        MediaRefused: no such size keeps the shape.
    """
    factor = math.sqrt(budget * CELL * CELL / (height * width))
    rows, columns = math.floor(factor * height / CELL), math.floor(factor * width / CELL)
    if rows == 0 and columns == 0:
        raise MediaRefused(f"an image of {width} x {height} pixels is too small", code="media_malformed")
    if rows == 0:
        rows, columns = 1, min(width // height, budget)
    elif columns == 0:
        rows, columns = min(height // width, budget), 1
    return rows * CELL, columns * CELL


def soft_tokens(height: int, width: int, budget: int) -> int:
    """Rows that the tower gives for a picture of this size."""
    rows, columns = target_size(height, width, budget)
    return rows * columns // CELL**2


def scaled(rgb: RGB, budget: int) -> RGB:
    """To the target size, bicubic."""
    height, width = target_size(rgb.shape[0], rgb.shape[1], budget)
    if rgb.shape[:2] == (height, width):
        return rgb
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BICUBIC))


def patches(rgb: RGB, side: int = PATCH) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Of a scaled picture: values in [0, 1], float32 [N, side * side * 3] in order (row, column, channel),
    and their (x, y) in the grid, int32 [N, 2], row by row. `side`: PATCH, or CELL without towers."""
    rows, columns = rgb.shape[0] // side, rgb.shape[1] // side
    cells = rgb.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
    y, x = np.divmod(np.arange(rows * columns, dtype=np.int32), np.int32(columns))
    return _UNIT[side][cells], np.stack([x, y], axis=1)
