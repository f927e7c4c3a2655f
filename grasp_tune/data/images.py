"""Pictures: MNIST and CIFAR-10 as torchvision reads them, and folders with one folder per class.

Pictures stay bytes in memory, a quarter of the space; `Data.pixels` says how a model reads them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grasp_tune.config.errors import DataError, MissingDataError
from grasp_tune.data import vision
from grasp_tune.data.data import Data, PixelScale
from grasp_tune.data.options import Cifar10, ImageFolder, Images, Mnist
from grasp_tune.data.table import KEY, check_memory, kept_rows

logger = logging.getLogger(__name__)

_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
_FILES = {
    "mnist": "MNIST/raw/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte "
    "and t10k-labels-idx1-ubyte",
    "cifar10": "cifar-10-batches-py/data_batch_1 to data_batch_5, test_batch and batches.meta",
}
Part = tuple[Tensor, Tensor]  # pictures as bytes, and their classes


def mnist(options: Mnist) -> Data:
    """Handwritten digits as pictures of one channel."""
    train, test = (_torchvision_part("MNIST", options, train) for train in (True, False))
    pictures = (train.data.unsqueeze(1), train.targets), (test.data.unsqueeze(1), test.targets)
    return _image_data("mnist", *pictures, tuple(map(str, range(10))), options)


def cifar10(options: Cifar10) -> Data:
    """Small colour pictures in ten classes."""

    def part(source: Any) -> Part:
        pixels = torch.from_numpy(np.ascontiguousarray(source.data.transpose(0, 3, 1, 2)))
        return pixels, torch.tensor(source.targets)

    train, test = (_torchvision_part("CIFAR10", options, train) for train in (True, False))
    return _image_data("cifar10", part(train), part(test), tuple(train.classes), options)


def image_folder(options: ImageFolder) -> Data:
    """Pictures sorted into folders, the folders' names being the classes."""
    root = Path(options.path).expanduser()
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


def data_folder(path: str | None) -> Path:
    """The folder of data sets: the one given, $GRASP_TUNE_DATA, or one in the user's cache."""
    return Path(
        path or os.environ.get("GRASP_TUNE_DATA") or "~/.cache/grasp_tune/data"
    ).expanduser()


def _torchvision_part(kind: str, options: Mnist | Cifar10, train: bool) -> Any:
    root, name = data_folder(options.path), options.name
    reader = getattr(vision.torchvision(f"the data set {name}").datasets, kind)
    try:
        return reader(root=str(root), train=train, download=options.download)
    except (RuntimeError, OSError) as error:
        tried = f" (fetching failed: {' '.join(str(error).split())})" if options.download else ""
        raise MissingDataError(
            f"{name} is not complete in {root}{tried}; expected {_FILES[name]} there. Set "
            f"{KEY}.path to the folder that holds them, or {KEY}.download: true to fetch them"
        ) from error


def _image_data(
    name: str, train: Part, test: Part | None, labels: tuple[str, ...], options: Images
) -> Data:
    x, y = train
    kept = torch.from_numpy(kept_rows(len(x), options.rows))
    x, y = x[kept].contiguous(), y[kept].long()
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
    folders = (
        [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    )
    return tuple(sorted(folders))


def _pictures(folder: Path, labels: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = [
        (file, code)
        for code, label in enumerate(labels)
        for file in sorted((folder / label).glob("*"))
        if file.suffix.lower() in _SUFFIXES
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
        pixels[row] = vision.read_picture(file, options.size, options.channels)
    return torch.from_numpy(pixels), torch.tensor([code for _, code in files])
