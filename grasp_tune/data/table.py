"""Arrays to data: labels to classes, a test share, fewer rows, standardized and scaled columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grasp_tune.config.errors import DataError, MissingDataError, shown
from grasp_tune.data.data import Data
from grasp_tune.data.options import Table

KEY = "problem.dataset"
GIB = 1 << 30
MAX_CLASSES = 10_000
_FEW = 20  # different whole numbers that are classes in any number of rows
Task = Literal["auto", "classification", "regression"]
Array = NDArray[Any]
Labels = tuple[str, ...] | None

# The same rows are set aside whatever the experiment's seed, so that seeds can be compared.
_SPLIT_SEED, _ROWS_SEED = 7001, 7002


def existing_file(path: str, key: str, how: str) -> Path:
    """The path of a file that is there; else an error that says how to provide it."""
    file = Path(path)
    if not file.is_file():
        what = "a folder" if file.is_dir() else "not there"
        raise MissingDataError(f"{KEY}.{key}: {file} is {what}; expected {how}")
    return file


def check_memory(name: str, needed: float, max_gib: float) -> None:
    """Raise DataError when `needed` bytes are more than the options allow."""
    if needed > max_gib * GIB:
        raise DataError(
            f"{name}: needs {needed / GIB:.3g} GiB of memory, expected at most {max_gib:g} "
            f"({KEY}.max_gib)"
        )


def table_data(
    name: str,
    arrays: Sequence[Array],
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
    x, y, x_test, y_test = _with_test_share(name, arrays, options.test_share)
    if len(x) != len(y):
        raise DataError(f"{name}: {len(x)} rows but {len(y)} labels, expected as many")
    codes, codes_test, found = encode_labels(name, y, y_test, task)
    if task == "auto" and found is None and labels is None and _whole(y):
        notes += (
            f"Labels are {len(np.unique(y))} different whole numbers and are predicted as "
            f"numbers; {KEY}.task: classification takes them as classes.",
        )
    kept = kept_rows(len(x), options.rows)
    x = x[kept]
    if numbers is not None:
        there = ~np.isnan(x)
        mean = np.where(there, x, 0.0).sum(axis=0) / there.sum(axis=0).clip(min=1)
        x = np.where(there, x, mean)
        x_test = None if x_test is None else np.where(np.isnan(x_test), mean, x_test)
    standardize = options.standardize
    if standardize == "auto" and (standardize := _scales_differ(x[:, :numbers])):
        notes += (
            "Columns of numbers were shifted and divided to mean 0, variance 1, for their "
            f"scales differ; {KEY}.standardize: false leaves them as they are.",
        )
    shift: Any = 0.0
    factor: Any = options.scale
    if standardize:
        shift, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
        # A constant column carries nothing: it becomes 0 instead of 0/0.
        factor = options.scale / np.where(deviation > 0, deviation, 1.0)
        if numbers is not None:
            shift[numbers:], factor[numbers:] = 0.0, options.scale

    def tensor(values: Array) -> Tensor:
        if standardize or options.scale != 1.0:
            values = (values - shift) * factor
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))

    test = None if x_test is None else tensor(x_test)
    codes = codes[torch.from_numpy(kept)]
    return Data(name, tensor(x), codes, test, codes_test, labels or found, notes=notes)


def kept_rows(count: int, rows: int | None) -> NDArray[np.int64]:
    """The training rows that are used, in their order: all, or `rows` picked at random."""
    if rows is None or rows >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(_ROWS_SEED).permutation(count)[:rows])


def parted(count: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that stay, and a random share that is kept aside; at least one of each, in order."""
    held = min(max(1, round(share * count)), count - 1)
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _scales_differ(x: Array) -> bool:
    """Whether a column is far from 0, or the widest is more than ten times the narrowest."""
    deviation = x.std(axis=0, dtype=np.float64).ravel()
    deviation = deviation[deviation > 0]
    far = np.abs(x).max(initial=0.0) > 100
    return bool(far or (len(deviation) and deviation.max() > 10 * deviation.min()))


def encode_labels(
    name: str, y: Array, y_test: Array | None, task: Task
) -> tuple[Tensor, Tensor | None, Labels]:
    """Labels as classes counted from 0 with their names, or as numbers to predict (names None)."""
    for part in (y, y if y_test is None else y_test):
        if part.size == 0:
            raise DataError(f"{name}: there are no rows")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise DataError(f"{name}: labels hold nan or inf, expected finite numbers")
    if task == "regression" or (task == "auto" and not _looks_like_classes(y)):
        if not np.issubdtype(y.dtype, np.number):
            raise DataError(f"{name}: labels are text ({shown(y.flat[0])}), expected numbers")
        test = None if y_test is None else torch.from_numpy(y_test.astype(np.float32))
        return torch.from_numpy(y.astype(np.float32)), test, None
    if y.ndim == 2 and y.shape[1] == 1:
        y, y_test = y[:, 0], None if y_test is None else y_test[:, 0]
    values, codes = np.unique(y, return_inverse=True)
    fault, codes_test = "", None
    if y.ndim != 1:
        fault = f"classes have shape {y.shape}, expected one per row"
    elif len(values) > MAX_CLASSES:
        fault = f"{len(values)} different labels, expected at most {MAX_CLASSES} classes; "
        fault += f"for numbers to predict set {KEY}.task: regression"
    elif y_test is not None:
        places = np.searchsorted(values, y_test).clip(max=len(values) - 1)
        if len(unknown := y_test[values[places] != y_test]):
            label = _label_name(unknown[0])
            fault = f"the test rows have the label {label}, which no training row has"
        codes_test = torch.from_numpy(places.astype(np.int64))
    if fault:
        raise DataError(f"{name}: {fault}")
    return torch.from_numpy(codes.astype(np.int64)), codes_test, tuple(map(_label_name, values))


def _with_test_share(name: str, arrays: Sequence[Array], share: float) -> Sequence[Any]:
    """Inputs, labels, and those of the test rows: given, or a share of all."""
    if share == 0.0:
        return [*arrays, None, None][:4]
    if len(arrays) == 4:
        raise DataError(
            f"{name}: it has test rows of its own, so {KEY}.test_share must be 0, got {share:g}"
        )
    x, y = arrays
    train, test = parted(len(x), share, _SPLIT_SEED)
    return x[train], y[train], x[test], y[test]


def _looks_like_classes(y: Array) -> bool:
    if y.dtype.kind not in "iufc":
        return True  # text, booleans
    if y.ndim > 1 and y.shape[1] > 1:
        return False
    # Files of text do not tell 1 from 1.0: whole numbers that come again and again are classes.
    different = len(np.unique(y))
    return y.dtype.kind in "iu" or (_whole(y) and (different <= _FEW or 10 * different <= len(y)))


def _whole(y: Array) -> bool:
    return y.dtype.kind == "f" and bool((y == np.round(y)).all())


def _label_name(value: object) -> str:
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]
