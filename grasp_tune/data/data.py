"""What every kind of data becomes: tensors, and what a model has to know about them."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from grasp_tune.config.errors import require


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
        count, both = len(self.labels or ()), (self.x_test is None) == (self.y_test is None)
        enough = self.labels is None or count > 1
        require(enough, f"{self.name}: got {count} class, expected at least 2")
        require(both, f"{self.name}: test inputs and test labels must come together")
        self._check("training", self.x, self.y)
        if self.x_test is not None and self.y_test is not None:
            self._check("test", self.x_test, self.y_test)

    def _check(self, part: str, x: Tensor, y: Tensor) -> None:
        wanted = torch.float32 if self.pixels is None else torch.uint8
        where, ours, theirs = f"{self.name}: {part}", tuple(self.x.shape[1:]), tuple(x.shape[1:])
        shapes = f"shape {tuple(x.shape)} and labels {tuple(y.shape)}; expected (rows, ...)"
        fits = x.ndim > 1 and 0 < len(x) == len(y)
        require(fits, f"{where} inputs have {shapes} and as many labels")
        differ = f"a test row has shape {theirs}, a training row {ours}; they must agree"
        require(ours == theirs, f"{self.name}: {differ}")
        require(x.dtype == wanted, f"{where} inputs are {x.dtype}, expected {wanted}")
        require(torch.isfinite(x).all(), f"{where} inputs hold nan or inf, expected finite numbers")
        if self.labels is None:
            right = y.dtype == torch.float32 and torch.isfinite(y).all()
            require(right, f"{where} labels must be finite float32 numbers")
        else:
            last, got = len(self.labels) - 1, f"{y.dtype} from {y.min()} to {y.max()}"
            right = y.dtype == torch.int64 and y.ndim == 1 and y.min() >= 0 and y.max() <= last
            require(right, f"{where} classes are {got}, expected torch.int64 from 0 to {last}")

    @property
    def spec(self) -> DataSpec:
        """What a model has to know about this data."""
        classes = None if self.labels is None else len(self.labels)
        outputs = classes or (1 if self.y.ndim == 1 else int(self.y.shape[1]))
        return DataSpec(self.name, tuple(self.x.shape[1:]), classes, outputs, self.pixels)
