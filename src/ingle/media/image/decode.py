"""A picture of any taken format as RGB, upright, on white. Runs in a decoding process.

The header's size is checked before a single pixel is made. Animations give their first frame, fully
composed. Colour profiles are not applied, as the models' own preprocessing does not.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, Image, ImageOps

from ingle.errors import MediaRefused
from ingle.media.sniff import sniff, undecodable

try:
    import pi_heif
except ImportError:  # an extra
    pi_heif = None
else:
    pi_heif.register_heif_opener()
    pi_heif.options.DECODE_THREADS = 1

AvifImagePlugin.DEFAULT_MAX_THREADS = 1
warnings.simplefilter("error", Image.DecompressionBombWarning)

RGB = npt.NDArray[np.uint8]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
_UPRIGHT = 1
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True)
class ImageLimits:
    max_side: int
    max_pixels: int

    def check(self, width: int, height: int, what: str = "image") -> None:
        """Raises MediaRefused: too large; names size and limit."""
        if width < 1 or height < 1:
            raise MediaRefused(f"the {what} has no pixels ({width} x {height})", code="media_malformed")
        if max(width, height) > self.max_side:
            raise MediaRefused(
                f"the {what} has {width} x {height} pixels, the limit is {self.max_side} a side",
                code="media_too_large",
            )
        if width * height > self.max_pixels:
            raise MediaRefused(
                f"the {what} has {width} x {height} pixels, the limit is {self.max_pixels} in all",
                code="media_too_large",
            )


@dataclass(frozen=True, slots=True)
class Picture:
    rgb: RGB  # [height, width, 3], upright
    format: str
    mode: str  # Pillow's, before the conversion


def decode_image(data: bytes | memoryview, limits: ImageLimits, cover: int | None = None) -> Picture:
    """The picture at full quality.

    `cover` lets JPEG be decoded at a reduced scale with no side below so many pixels: quick, not exact.

    Raises:
        MediaRefused: no image, a format that is not taken, too large, or broken.
    """
    with opened(data, limits) as image:
        if cover is not None and image.format == "JPEG":
            image.draft(None, (cover, cover))
        mode = image.mode
        return Picture(to_rgb(upright(image)), str(image.format), mode)


@contextlib.contextmanager
def opened(data: bytes | memoryview, limits: ImageLimits) -> Generator[Image.Image]:
    """The image with nothing but its header read. Errors inside the block are the data's fault."""
    found = sniff(data)
    if found.kind != "image":
        raise MediaRefused(f"the data is {found.format} {found.kind}, not an image", code="media_wrong_kind")
    if found.format == "HEIF" and pi_heif is None:
        raise MediaRefused(
            "the data is a HEIC image, and this server has no decoder for it (the extra `heic`)",
            code="media_unsupported",
        )
    Image.MAX_IMAGE_PIXELS = None  # ours is the limit, and it is checked before anything is loaded
    try:
        with Image.open(io.BytesIO(data), formats=[found.format]) as image:
            limits.check(*image.size)
            yield image
    except (MediaRefused, MemoryError):
        raise
    except Exception as error:  # a decoder raises whatever its authors thought of
        raise undecodable("image", error) from None


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF tag says. A tag that cannot be read turns nothing."""
    image.load()
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, _UPRIGHT)
    except Exception:
        return image
    return image if orientation == _UPRIGHT else ImageOps.exif_transpose(image)


def to_rgb(image: Image.Image) -> RGB:
    """uint8 [height, width, 3]; transparent parts lie on white."""
    if image.mode.startswith("I;16"):
        gray = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode == "I":  # 16-bit grey in a wider type
        gray = (np.clip(np.asarray(image), 0, 65535) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode == "F":  # by convention 0 to 1
        values = np.nan_to_num(np.asarray(image), nan=0.0, posinf=1.0, neginf=0.0)
        gray = (np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(ground, layer).convert("RGB"))
    return np.asarray(image.convert("RGB"))
