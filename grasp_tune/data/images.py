"""Pictures: MNIST and CIFAR-10 as torchvision reads them, and folders with one folder per class.

Pictures stay bytes in memory, a quarter of the space; `Data.pixels` says how a model reads them.
The one place that imports torchvision and Pillow.
"""

from __future__ import annotations

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
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
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
    root = Path(
        options.path or os.environ.get("GRASP_TUNE_DATA") or "~/.cache/grasp_tune/data"
    ).expanduser()
    reader = getattr(torchvision(f"the data set {options.name}").datasets, options.name.upper())

    def part(train: bool) -> tuple[Part, list[str]]:
        source = reader(root=str(root), train=train, download=options.download)
        pixels = torch.as_tensor(source.data)  # (rows, height, width), or with colours last
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        return (pixels, torch.as_tensor(source.targets)), source.classes

    try:
        (train, classes), (test, _) = part(True), part(False)
    except (RuntimeError, OSError, ValueError, AssertionError, MemoryError) as error:
        tried = f" (fetching failed: {' '.join(str(error).split())})" if options.download else ""
        raise MissingDataError(
            f"{options.name} is not complete in {root}{tried}; expected {_FILES[options.name]} "
            f"there. Set {KEY}.path to the folder that holds them, or {KEY}.download: true to "
            "fetch them"
        ) from error
    labels = tuple(name.partition(" - ")[0] for name in classes)  # MNIST: "0 - zero"
    return _image_data(options.name, train, test, labels, options)


def image_folder(options: ImageFolder) -> Data:
    """Pictures sorted into folders, the folders' names being the classes."""
    root = Path(options.path)
    train = root / "train" if (root / "train").is_dir() else root
    test = root / "test"
    labels = _classes(train)
    if not labels:
        raise MissingDataError(
            f"{KEY}.path: {root} has no class folders; expected {root}/train/<class>/<picture> "
            f"and, for test pictures, {root}/test/<class>/<picture>, with pictures that end in "
            f"{', '.join(_SUFFIXES)}"
        )
    if train == root:
        labels = tuple(label for label in labels if label != "test")
    elif unknown := set(_classes(test)) - set(labels):
        raise DataError(f"{test}: has the class {min(unknown)}, which {train} does not have")
    files = _pictures(train, labels)
    files_test = _pictures(test, labels) if test.is_dir() else []
    count = len(files) + len(files_test)
    check_memory(root.name, count * options.channels * options.size**2, options.max_gib)
    # Only the rows that are kept are read.
    rows = _read([files[row] for row in kept_rows(len(files), options.rows)], options)
    rows_test = _read(files_test, options) if files_test else None
    return _image_data(root.name or "image_folder", rows, rows_test, labels, options)


def _image_data(
    name: str, train: Part, test: Part | None, labels: tuple[str, ...], options: Images
) -> Data:
    kept = torch.from_numpy(kept_rows(len(train[0]), options.rows))
    x, y = train[0][kept].contiguous(), train[1][kept].long()
    mean, std = _statistics(x) if options.normalize else ((0.0,), (1.0,))
    x_test, y_test = (None, None) if test is None else (test[0].contiguous(), test[1].long())
    return Data(name, x, y, x_test, y_test, labels, PixelScale(mean, std, options.scale))


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


def _classes(folder: Path) -> tuple[str, ...]:
    entries = folder.iterdir() if folder.is_dir() else ()
    return tuple(sorted(entry.name for entry in entries if entry.is_dir()))


def _pictures(folder: Path, labels: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = [
        (file, code)
        for code, label in enumerate(labels)
        for file in sorted((folder / label).glob("*"))
        if file.suffix.lower() in _SUFFIXES and file.is_file()
    ]
    if not found:
        raise MissingDataError(
            f"{KEY}.path: no pictures in the class folders of {folder}; expected files that end "
            f"in {', '.join(_SUFFIXES)}"
        )
    return found


def _read(files: list[tuple[Path, int]], options: ImageFolder) -> Part:
    logger.info("reading %d pictures", len(files))
    pixels = np.empty((len(files), options.channels, options.size, options.size), dtype=np.uint8)
    for row, (file, _) in enumerate(files):
        pixels[row] = _read_picture(file, options.size, options.channels)
    return torch.from_numpy(pixels), torch.tensor([code for _, code in files])


def _read_picture(path: Path, size: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
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
    except DataError:
        raise
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a picture ({error})") from error
    return np.asarray(picture, dtype=np.uint8).reshape(size, size, channels).transpose(2, 0, 1)
