"""What every kind of data becomes: tensors, and what a model has to know about them.

`table_data` makes it of arrays: labels to classes, a test share, fewer rows, scaled columns.
"""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grasp_tune.config.errors import DataError, MissingDataError, require, shown
from grasp_tune.core.errors import GraspError
from grasp_tune.data.options import Table

KEY = "problem.dataset"
_MAX_CLASSES = 10_000
LARGEST = float(np.finfo(np.float32).max)
_FEW = 20  # different whole numbers that are classes in any number of rows
# The same rows are set aside whatever the experiment's seed, so that seeds can be compared.
_SPLIT_SEED, _ROWS_SEED = 7001, 7002

Task = Literal["auto", "classification", "regression"]
Array = NDArray[Any]
Labels = tuple[str, ...] | None  # names of the classes; None: numbers are predicted


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
    labels: Labels = None
    pixels: PixelScale | None = None
    notes: tuple[str, ...] = ()  # what was done to the rows that a person should know

    def __post_init__(self) -> None:
        name, count = self.name, 2 if self.labels is None else len(self.labels)
        both = (self.x_test is None) == (self.y_test is None)
        require(name, count > 1, f"got {count} class, expected at least 2")
        require(name, both, "test inputs and test labels must come together")
        wanted = torch.float32 if self.pixels is None else torch.uint8
        for part, x, y in ("training", self.x, self.y), ("test", self.x_test, self.y_test):
            if x is None or y is None:
                continue
            ours, theirs = tuple(self.x.shape[1:]), tuple(x.shape[1:])
            fits = x.ndim > 1 and 0 < len(x) == len(y)
            got = f"{part} inputs have shape {tuple(x.shape)} and labels {tuple(y.shape)}"
            require(name, fits, f"{got}; expected (rows, ...) and as many labels")
            fault = f"a test row has shape {theirs}, a training row {ours}; they must agree"
            require(name, ours == theirs, fault)
            require(name, x.dtype == wanted, f"{part} inputs are {x.dtype}, expected {wanted}")
            finite = torch.isfinite(x).all()
            require(name, finite, f"{part} inputs hold nan or inf, expected finite numbers")
            if self.labels is None:
                right = y.dtype == torch.float32 and torch.isfinite(y).all()
                require(name, right, f"{part} labels must be finite float32 numbers")
            else:
                right = y.dtype == torch.int64 and y.ndim == 1 and y.min() >= 0 and y.max() < count
                got = f"{part} classes are {y.dtype} from {y.min()} to {y.max()}"
                require(name, right, f"{got}, expected torch.int64 from 0 to {count - 1}")

    @property
    def spec(self) -> DataSpec:
        classes = None if self.labels is None else len(self.labels)
        outputs = classes or (1 if self.y.ndim == 1 else int(self.y.shape[1]))
        return DataSpec(self.name, tuple(self.x.shape[1:]), classes, outputs, self.pixels)


def existing_file(path: str, key: str, how: str) -> Path:
    """The path of a file that is there; else an error that says how to provide it."""
    file = Path(path)
    if not file.is_file():
        what = "a folder" if file.is_dir() else "not there"
        raise MissingDataError(f"{KEY}.{key}: {file} is {what}; expected {how}")
    return file


@contextmanager
def reading(file: object, what: str, how: str = "") -> Iterator[None]:
    """Turn what a reader raises into one line with the file's name; our own errors stay."""
    try:
        yield
    except GraspError:
        raise
    except Exception as error:  # readers raise many kinds; all mean the same here
        wanted = f"; expected {how}" if how else ""
        why = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise DataError(f"{file}: cannot be read as {what} ({why}){wanted}") from error


def check_memory(name: str, needed: float, max_gib: float) -> None:
    """Raise DataError when `needed` bytes are more than the options allow."""
    got = f"needs {needed / 2**30:.3g} GiB of memory, expected at most {max_gib:g}"
    require(name, needed <= max_gib * 2**30, f"{got} ({KEY}.max_gib)")


def kept_rows(count: int, rows: int | None) -> NDArray[np.int64]:
    """The training rows that are used, in their order: all, or `rows` picked at random."""
    if rows is None or rows >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(_ROWS_SEED).permutation(count)[:rows])


def table_data(
    name: str,
    arrays: Sequence[Any],
    options: Table,
    task: Task = "auto",
    *,
    labels: Labels = None,
    numbers: int | None = None,
    notes: tuple[str, ...] = (),
) -> Data:
    """The data that raw arrays and their options give; `name` is for people.

    arrays: (rows, ...) inputs and (rows,) or (rows, outputs) labels, then those of the test rows.
    labels: names, when classes are counted from 0 already. notes: what was done to the columns.
    numbers: columns, the first ones, that hold numbers, in which a blank is NaN; None: all of them.
    """
    parts = [part if at % 2 else _numbers(name, part) for at, part in enumerate(arrays)]
    x, y, x_test, y_test = [*parts, None, None][:4]
    require(name, len(x) == len(y), f"{len(x)} rows but {len(y)} labels, expected as many")
    codes, codes_test, found = encode_labels(name, y, y_test, task)
    if task == "auto" and labels is None:
        notes += _label_notes(y, classes=found is not None)
    if share := options.test_share:
        fault = f"it has test rows of its own, so {KEY}.test_share must be 0, got {share:g}"
        require(name, x_test is None, fault)
        held = min(max(1, round(share * len(x))), len(x) - 1)
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(x))
        train, test = np.sort(order[held:]), np.sort(order[:held])
        x, codes, x_test, codes_test = x[train], codes[train], x[test], codes[test]
    kept = kept_rows(len(x), options.rows)
    x = x[kept]
    if numbers is not None:
        there = ~np.isnan(x)
        mean = np.where(there, x, 0.0).sum(axis=0) / there.sum(axis=0).clip(min=1)
        x = np.where(there, x, mean)
        x_test = None if x_test is None else np.where(np.isnan(x_test), mean, x_test)
    if (standardize := options.standardize) == "auto":
        # Whether a column is far from 0, or the widest is more than ten times the narrowest.
        spread = x[:, :numbers].std(axis=0, dtype=np.float64)
        spread = spread[spread > 0]
        far = np.abs(x[:, :numbers]).max(initial=0.0) > 100
        standardize = bool(far or (len(spread) and spread.max() > 10 * spread.min()))
        told = f"scales differ; {KEY}.standardize: false leaves them as they are."
        told = (
            f"Columns of numbers were shifted and divided to mean 0, variance 1, for their {told}"
        )
        notes += (told,) * standardize
    scale = options.scale
    shift, factor = _scaling(x, numbers, scale) if standardize else (0.0, scale)

    def tensor(values: Array) -> Tensor:
        if standardize or scale != 1.0:
            values = (values - shift) * factor
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))

    x_test = None if x_test is None else tensor(x_test)
    return Data(name, tensor(x), codes[kept], x_test, codes_test, labels or found, notes=notes)


def _label_notes(y: Array, classes: bool) -> tuple[str, ...]:
    """What was made of labels that are whole numbers, where another reading may be meant."""
    whole = y.size == len(y) and (y.dtype.kind in "iu" or _whole(y))
    different = len(np.unique(y)) if whole else 0
    if different <= (_FEW if classes else 0):
        return ()
    taken = "predicted as numbers; {}.task: classification takes them as classes."
    if classes:
        taken = "taken as classes; {}.task: regression predicts them as numbers."
    return (f"Labels are {different} different whole numbers and are {taken.format(KEY)}",)


def _scaling(x: Array, numbers: int | None, scale: float) -> tuple[Array, Array]:
    """What to subtract from columns of numbers, and their factors for the deviation `scale`."""
    shift, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    # A constant column, but for rounding, carries nothing: it becomes 0 instead of 0/0.
    factor = scale / np.where(deviation > 1e-12 * np.abs(shift), deviation, 1.0)
    if numbers is not None:
        shift[numbers:], factor[numbers:] = 0.0, scale
    return shift, factor


def _numbers(name: str, x: Array) -> Any:
    try:
        return x if x.dtype.kind in "iufb" else x.astype(np.float64)
    except (TypeError, ValueError) as error:
        fault = f"inputs hold {x.dtype} ({error}), expected an array of numbers"
        raise DataError(f"{name}: {fault}") from None


def encode_labels(
    name: str, y: Array, y_test: Array | None, task: Task
) -> tuple[Tensor, Tensor | None, Labels]:
    """Labels as classes counted from 0 with their names, or as numbers to predict (names None)."""
    parts = [y] if y_test is None else [y, y_test]
    finite = all((np.abs(part) < LARGEST).all() for part in parts if part.dtype.kind == "f")
    require(name, all(part.size for part in parts), "there are no rows")
    require(name, finite, "labels hold nan or inf, or more than 3e38, expected numbers")
    if task != "regression" and all(map(_is_one_hot, parts)):
        parts = [part.argmax(axis=1) for part in parts]
    names: Labels = None
    if task == "regression" or (task == "auto" and not _looks_like_classes(parts[0])):
        text, first = not np.issubdtype(y.dtype, np.number), shown(str(y.flat[0]))
        require(name, not text, f"labels are text ({first}), expected numbers")
        codes = [part.astype(np.float32) for part in parts]
    else:
        parts = [part[:, 0] if part.shape[1:] == (1,) else part for part in parts]
        require(name, parts[0].ndim == 1, f"classes have shape {y.shape}, expected one per row")
        values = np.unique(parts[0])
        fault = f"{len(values)} different labels, expected at most {_MAX_CLASSES} classes; for "
        fault += f"numbers to predict set {KEY}.task: regression"
        require(name, len(values) <= _MAX_CLASSES, fault)
        codes = [np.searchsorted(values, part).clip(max=len(values) - 1) for part in parts]
        unknown = "".join(_names(parts[-1][values[codes[-1]] != parts[-1]][:1]))
        fault = f"the test rows have the label {unknown}, which no training row has"
        require(name, not unknown, fault)
        names = _names(values)
    train, *test = map(torch.from_numpy, codes)
    return train, test[0] if test else None, names


def _is_one_hot(y: Array) -> bool:
    """Whether each row of labels is 1 for its class and 0 for all others."""
    wide = y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "iufb"
    return wide and bool(((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def _looks_like_classes(y: Array) -> bool:
    if y.dtype.kind not in "iufc" or (y.ndim > 1 and y.shape[1] > 1):
        return y.dtype.kind not in "iufc"  # text and booleans do, several numbers in a row do not
    # Files of text do not tell 1 from 1.0: whole numbers that come again and again are classes.
    different = len(np.unique(y))
    return y.dtype.kind in "iu" or (_whole(y) and (different <= _FEW or 10 * different <= len(y)))


def _whole(y: Array) -> bool:
    return y.dtype.kind == "f" and bool((y == np.round(y)).all())


def _names(values: Array) -> tuple[str, ...]:
    """Names of classes; 1.0 is called 1."""
    ending = ".0" if values.dtype.kind == "f" else ""
    return tuple(str(value).removesuffix(ending) for value in values)
