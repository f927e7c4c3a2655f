"""What every kind of data becomes: tensors, and what a model has to know about them."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from grasp_tune.config.errors import DataError


@dataclass(frozen=True, slots=True)
class PixelScale:
    """How bytes become numbers: `scale * (byte / 255 - mean) / std`, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What a model has to know: shapes and classes, without any row."""

    name: str
    input_shape: tuple[int, ...]  # of one row
    classes: int | None  # None: numbers are predicted
    outputs: int  # classes, or how many numbers are predicted
    pixels: PixelScale | None = None  # set when rows are bytes

    @property
    def features(self) -> int:
        """Numbers in one row."""
        return prod(self.input_shape)


@dataclass(frozen=True, eq=False)
class Data:
    """Training rows, test rows where there are some, and the names of the classes.

    x: (rows, ...), float32, or bytes when `pixels` says how to read them. y: (rows,) int64 from 0
    for classes; (rows,) or (rows, outputs) float32 for numbers to predict.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    labels: tuple[str, ...] | None = None  # names of the classes; None: numbers are predicted
    pixels: PixelScale | None = None
    notes: tuple[str, ...] = ()  # what was done to the rows that a person should know

    def __post_init__(self) -> None:
        fault = self._fault("training", self.x, self.y)
        if self.x_test is not None and self.y_test is not None:
            fault = fault or self._fault("test", self.x_test, self.y_test)
            ours, theirs = tuple(self.x.shape[1:]), tuple(self.x_test.shape[1:])
            if ours != theirs:
                fault = f"a test row has shape {theirs}, a training row {ours}; they must agree"
        elif (self.x_test is None) != (self.y_test is None):
            fault = "test inputs and test labels must come together"
        if self.labels is not None and len(self.labels) < 2:
            fault = f"got {len(self.labels)} class, expected at least 2"
        if fault:
            raise DataError(f"{self.name}: {fault}")

    def _fault(self, part: str, x: Tensor, y: Tensor) -> str:
        """What makes a part of the rows useless; empty where nothing does."""
        wanted = torch.float32 if self.pixels is None else torch.uint8
        last = len(self.labels or ()) - 1
        if x.ndim < 2 or len(x) == 0 or len(x) != len(y):
            shapes = f"shape {tuple(x.shape)} and labels {tuple(y.shape)}"
            return f"{part} inputs have {shapes}; expected (rows, ...) and as many labels"
        if x.dtype != wanted:
            return f"{part} inputs are {x.dtype}, expected {wanted}"
        if not bool(torch.isfinite(x).all()):
            return f"{part} inputs hold nan or inf, expected finite numbers"
        if self.labels is None:
            right = y.dtype == torch.float32 and bool(torch.isfinite(y).all())
            return "" if right else f"{part} labels must be finite float32 numbers"
        if y.dtype != torch.int64 or y.ndim != 1 or int(y.min()) < 0 or int(y.max()) > last:
            got = f"{y.dtype} from {y.min()} to {y.max()}"
            return f"{part} classes are {got}, expected torch.int64 from 0 to {last}"
        return ""

    @property
    def spec(self) -> DataSpec:
        """What a model has to know about this data."""
        classes = None if self.labels is None else len(self.labels)
        numbers = 1 if self.y.ndim == 1 else int(self.y.shape[1])
        shape = tuple(self.x.shape[1:])
        return DataSpec(self.name, shape, classes, classes or numbers, self.pixels)
