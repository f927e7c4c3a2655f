"""The one place that imports torchvision and Pillow.

torchvision built for another torch cannot load its compiled operators, and then its import fails
with "operator torchvision::nms does not exist", although nothing here uses them. Declaring the
signatures of the two operators that the import looks up lets everything in plain Python (data
sets, ResNets) work as usual.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from grasp_tune.config.errors import DataError
from grasp_tune.extras import missing_extra, need

_LOST_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a library that is collected takes its schemas along

_MAX_PIXELS = 50_000_000  # of one picture in a file
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")


def torchvision(purpose: str) -> ModuleType:
    """The torchvision module, made to import when its compiled part does not fit this torch."""
    try:
        return _import_torchvision()
    except ImportError as error:
        raise missing_extra("torchvision", "vision", purpose) from error
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _forget_half_import()
    _declare_lost_operators()
    return _import_torchvision()


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
    except (
        Image.UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read as a picture ({error})") from error
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def _import_torchvision() -> ModuleType:
    import torchvision
    import torchvision.datasets
    import torchvision.models

    return torchvision


def _forget_half_import() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_lost_operators() -> None:
    if _declared:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _LOST_OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
