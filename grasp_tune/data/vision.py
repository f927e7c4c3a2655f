"""The one place that imports torchvision and Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from grasp_tune.config.errors import DataError
from grasp_tune.extras import need

_MAX_PIXELS = 50_000_000  # of one picture in a file
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")


def torchvision(purpose: str) -> ModuleType:
    """The torchvision module with its data sets and models."""
    for part in ("datasets", "models"):
        need(f"torchvision.{part}", "vision", purpose)
    return need("torchvision", "vision", purpose)


def read_picture(path: Path, size: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture as (channels, size, size) bytes."""
    Image: Any = need("PIL.Image", "vision", "reading pictures", "Pillow")
    try:
        with warnings.catch_warnings():
            # The size is checked below, before any pixel is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise DataError(
                        f"{path}: has {image.width} x {image.height} pixels, expected at most "
                        f"{_MAX_PIXELS} in all"
                    )
                picture = image.convert("L" if channels == 1 else "RGB")
                if picture.size != (size, size):
                    picture = picture.resize((size, size), Image.Resampling.BILINEAR)
                pixels = np.asarray(picture, dtype=np.uint8)
    except DataError:
        raise
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a picture ({error})") from error
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)
