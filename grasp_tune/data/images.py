"""Pictures: MNIST and CIFAR-10 as torchvision reads them, and folders with one folder per class.

Pictures stay bytes in memory, a quarter of the space; `Data.pixels` says how a model reads them.
The one place that imports torchvision and Pillow.
"""

import logging
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grasp_tune.config.errors import DataError, MissingDataError
from grasp_tune.data.data import Data, PixelScale
from grasp_tune.data.options import ImageFolder, Images, TorchvisionImages
from grasp_tune.data.table import KEY, check_memory, kept_rows
from grasp_tune.extras import need

logger = logging.getLogger(__name__)

_MAX_PIXELS = 50_000_000  # of one picture in a file
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
_FILES = {
    "mnist": "MNIST/raw/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte "
    "and t10k-labels-idx1-ubyte",
    "cifar10": "cifar-10-batches-py/data_batch_1 to data_batch_5, test_batch and batches.meta",
}
Part = tuple[Tensor, Tensor]  # pictures as bytes, and their classes


def torchvision(purpose: str) -> ModuleType:
    """The torchvision module with its data sets and models."""
    for part in ("datasets", "models"):
        need(f"torchvision.{part}", "vision", purpose)
    return need("torchvision", "vision", purpose)


def published_images(options: TorchvisionImages) -> Data:
    """MNIST or CIFAR-10: as torchvision reads them, from the folder of data sets."""
    given = options.path or os.environ.get("GRASP_TUNE_DATA") or "~/.cache/grasp_tune/data"
    root = Path(given).expanduser()
    reader = getattr(torchvision(f"the data set {options.name}").datasets, options.name.upper())
    parts = []
    try:
        for train in (True, False):
            source = reader(root=str(root), train=train, download=options.download)
            pixels = torch.as_tensor(source.data)  # (rows, height, width), or with colours last
            pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
            parts.append((pixels, torch.as_tensor(source.targets)))
    except (RuntimeError, OSError, ValueError, AssertionError, MemoryError) as error:
        tried = f" (fetching failed: {' '.join(str(error).split())})" if options.download else ""
        raise MissingDataError(
            f"{options.name} is not complete in {root}{tried}; expected {_FILES[options.name]} "
            f"there. Set {KEY}.path to the folder that holds them, or {KEY}.download: true to "
            "fetch them"
        ) from error
    labels = tuple(name.partition(" - ")[0] for name in source.classes)  # MNIST: "0 - zero"
    return _image_data(options.name, parts, labels, options)


def image_folder(options: ImageFolder) -> Data:
    """Pictures sorted into folders, the folders' names being the classes."""
    root = Path(options.path)
    named = [root / part for part in ("train", "test") if (root / part).is_dir()]
    reader = torchvision("the data set image_folder").datasets.ImageFolder
    try:
        train, *test = map(reader, named if root / "train" in named else [root])
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{KEY}.path: {error}; expected {root}/train/<class>/<picture> and, for test "
            f"pictures, {root}/test/<class>/<picture>"
        ) from None
    codes = train.class_to_idx
    if unknown := {name for part in test for name in part.classes} - set(codes):
        raise DataError(f"{named[1]}: has the class {min(unknown)}, which the training rows lack")
    files = [
        [(path, codes[part.classes[at]]) for path, at in part.samples] for part in (train, *test)
    ]
    count = sum(map(len, files))
    check_memory(root.name, count * options.channels * options.size**2, options.max_gib)
    # Only the rows that are kept are read.
    files[0] = [files[0][row] for row in kept_rows(len(files[0]), options.rows)]
    parts = [_read(part, options) for part in files]
    return _image_data(root.name or "image_folder", parts, tuple(codes), options)


def _image_data(name: str, parts: list[Part], labels: tuple[str, ...], options: Images) -> Data:
    kept = torch.from_numpy(kept_rows(len(parts[0][0]), options.rows))
    parts = [(parts[0][0][kept], parts[0][1][kept]), *parts[1:]]
    x, y, *test = [part for x, y in parts for part in (x.contiguous(), y.long())]
    mean, std = _statistics(x) if options.normalize else ((0.0,), (1.0,))
    scale = PixelScale(mean, std, options.scale)
    x_test, y_test = test or (None, None)
    return Data(name, x, y, x_test, y_test, labels, scale)


def _statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of pixels from 0 to 1."""
    # Exact counts of the 256 values: no float copy of the pictures, no rounding in the sums.
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(x.shape[1]):
        share = torch.bincount(x[:, channel].flatten().int(), minlength=256).double()
        share /= share.sum()
        means.append(float((share * values).sum()))
        deviations.append(float((share * (values - means[-1]) ** 2).sum()) ** 0.5 or 1.0)
    return tuple(means), tuple(deviations)


def _read(files: list[tuple[str, int]], options: ImageFolder) -> Part:
    logger.info("reading %d pictures", len(files))
    pixels = np.empty((len(files), options.size, options.size, options.channels), dtype=np.uint8)
    for row, (file, _) in enumerate(files):
        picture = _picture(file, options.size, "L" if options.channels == 1 else "RGB")
        pixels[row] = np.asarray(picture, dtype=np.uint8).reshape(pixels.shape[1:])
    classes = torch.tensor([code for _, code in files])
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2)), classes


def _picture(path: str, size: int, mode: str) -> Any:
    """The picture as Pillow reads it, in the size and the colours that are wanted."""
    Image: Any = need("PIL.Image", "vision", "reading pictures", "Pillow")
    try:
        with warnings.catch_warnings():
            # The size is checked below, before any pixel is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                width, height = image.size
                if width * height > _MAX_PIXELS:
                    raise ValueError(
                        f"{width} x {height} pixels, expected at most {_MAX_PIXELS} in all"
                    )
                return image.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a picture ({error})") from error
