"""Pictures: MNIST and CIFAR-10 as torchvision reads them, and folders with one folder per class.

They stay bytes in memory, a quarter of the space; `Data.pixels` says how a model reads them.
"""

import logging
import os
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grasp_tune.config.errors import MissingDataError, require
from grasp_tune.data.data import KEY, Array, Data, PixelScale, check_memory, kept_rows, reading
from grasp_tune.data.options import ImageFolder, Images, TorchvisionImages
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
    for part in ("datasets", "models"):
        need(f"torchvision.{part}", "vision", purpose)
    return need("torchvision", "vision", purpose)


def published_images(options: TorchvisionImages) -> Data:
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
    root, side, channels = Path(options.path), options.size, options.channels
    tests = root / ("test" if (root / "test").is_dir() else "val")
    folders = [root / "train", tests][: 1 + tests.is_dir()]
    folders = folders if folders[0].is_dir() else [root]
    reader = torchvision("the data set image_folder").datasets.ImageFolder
    read = partial(_picture, size=side, mode="L" if channels == 1 else "RGB")
    try:
        sources = [reader(folder, loader=read) for folder in folders]
    except OSError as error:
        raise MissingDataError(
            f"{KEY}.path: {error}; expected {root}/train/<class>/<picture> and, for test "
            f"pictures, {root}/test/<class>/<picture>"
        ) from None
    codes = sources[0].class_to_idx
    unknown = {name for part in sources for name in part.classes} - set(codes)
    unlike = min(unknown, default="")
    require(tests, not unknown, f"has the class {unlike}, which the training rows lack")
    check_memory(root.name, sum(map(len, sources)) * channels * side**2, options.max_gib)
    parts: list[Part] = []
    for part in sources:
        # Only the rows that are kept are read.
        rows = kept_rows(len(part), None if parts else options.rows)
        logger.info("reading %d pictures", len(rows))
        pixels = torch.empty((len(rows), side, side, channels), dtype=torch.uint8)
        classes = torch.empty(len(rows), dtype=torch.int64)
        for at, row in enumerate(rows):
            picture, code = part[row]
            pixels[at] = torch.from_numpy(picture.reshape(side, side, channels))
            classes[at] = codes[part.classes[code]]
        parts.append((pixels.permute(0, 3, 1, 2), classes))
    return _image_data(root.name or "image_folder", parts, tuple(codes), options)


def _picture(path: str, size: int, mode: str) -> Array:
    """The pixels of a picture, in the size and the colours that are wanted."""
    Image: Any = need("PIL.Image", "vision", "reading pictures", "Pillow")
    require(path, os.path.isfile(path), "it is no regular file")  # a pipe would be waited for
    with reading(path, "a picture"), warnings.catch_warnings():
        # The size is checked below, before any pixel is decoded.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=_FORMATS) as image:
            width, height = image.size
            fault = f"{width} x {height} pixels, expected at most {_MAX_PIXELS} in all"
            require(path, width * height <= _MAX_PIXELS, fault)
            if image.mode.startswith("I"):  # sixteen bits, of which Pillow would keep the lowest
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return np.array(image.convert(mode).resize((size, size), Image.Resampling.BILINEAR))


def _image_data(name: str, parts: list[Part], labels: tuple[str, ...], options: Images) -> Data:
    (x, y), *test = [(x.contiguous(), y.long()) for x, y in parts]
    kept = torch.from_numpy(kept_rows(len(x), options.rows))
    x, y = x[kept], y[kept]
    # Exact counts of the 256 values: no float copy of the pictures, no rounding in the sums.
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = list[float](), list[float]()
    for channel in x.unbind(1) if options.normalize else ():
        share = torch.bincount(channel.flatten().int(), minlength=256).double()
        share /= share.sum()
        mean.append(float((share * values).sum()))
        std.append(float((share * (values - mean[-1]) ** 2).sum()) ** 0.5 or 1.0)
    scale = PixelScale(tuple(mean) or (0.0,), tuple(std) or (1.0,), options.scale)
    x_test, y_test = test[0] if test else (None, None)
    return Data(name, x, y, x_test, y_test, labels, scale)
