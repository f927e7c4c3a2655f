"""LIBSVM's text format: `label index:value index:value ...  # comment`, one row per line.

Read by hand, strictly: every line is checked, rows become dense only after their size is known.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from grasp_tune.config.errors import DataError, shown
from grasp_tune.data.data import Data
from grasp_tune.data.files import check_memory, existing_file
from grasp_tune.data.options import Libsvm
from grasp_tune.data.table import Array, Table, table_data

_MAX_INDEX = 10_000_000
_HOW = "a text file with lines such as: +1 3:0.5 7:1"


@dataclass(frozen=True, eq=False)
class SparseRows:
    """The rows of one file: values with their row and column, as they were read."""

    labels: Array  # (rows,)
    counts: Array  # (rows,), values in each row
    columns: Array  # (values,), as numbered in the file
    values: Array  # (values,)

    def dense(self, features: int, first: int) -> Array:
        """(rows, features) float32; `first` is the number of the first column, 0 or 1."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        x = np.zeros((len(self.counts), features), dtype=np.float32)
        x[rows, self.columns - first] = self.values
        return x


def libsvm(options: Libsvm) -> Data:
    """The rows of a LIBSVM file, and of a second one as test rows."""
    path = existing_file(options.path, "problem.dataset.path", _HOW)
    parts = [read_libsvm(path, options.max_gib)]
    if options.test_path is not None:
        test_path = existing_file(options.test_path, "problem.dataset.test_path", _HOW)
        parts.append(read_libsvm(test_path, options.max_gib))
    first, features = _columns(path, parts, options)
    rows = sum(len(part.labels) for part in parts)
    check_memory(path.name, 4.0 * rows * features, options.max_gib)
    x = [part.dense(features, first) for part in parts]
    table = Table(x[0], parts[0].labels)
    if len(parts) == 2:
        table = replace(table, x_test=x[1], y_test=parts[1].labels)
    return table_data(path.name, table, options, options.task)


def read_libsvm(path: Path, max_gib: float) -> SparseRows:
    """The rows of one file; DataError names the first line that is not right."""
    # A value takes at least four characters in the file and sixteen bytes here.
    check_memory(path.name, 4.0 * path.stat().st_size, max_gib)
    labels, counts, columns, values = array("d"), array("q"), array("q"), array("d")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            words = line.partition(b"#")[0].split()
            if not words:
                continue
            try:
                labels.append(_number(words[0]))
                last = -1
                for word in words[1:]:
                    left, colon, right = word.partition(b":")
                    column = int(left) if colon and left.isdigit() and len(left) < 10 else -1
                    if not last < column <= _MAX_INDEX:
                        raise ValueError(word)
                    columns.append(column)
                    values.append(_number(right))
                    last = column
            except ValueError:
                raise DataError(_broken(path, number, words)) from None
            counts.append(len(words) - 1)
    if not labels:
        raise DataError(f"{path}: has no rows, expected {_HOW}")
    return SparseRows(*(np.array(part) for part in (labels, counts, columns, values)))


def _number(word: bytes) -> float:
    value = float(word)
    # Python reads 1_000, which no other reader of the format does.
    if not math.isfinite(value) or b"_" in word:
        raise ValueError(word)
    return value


def _broken(path: Path, number: int, words: list[bytes]) -> str:
    text = b" ".join(words)[:200].decode("utf-8", "replace")
    return (
        f"{path}: line {number}: got {shown(text)}, expected a number, then index:value pairs with "
        f"growing indices up to {_MAX_INDEX} and finite values"
    )


def _columns(path: Path, parts: list[SparseRows], options: Libsvm) -> tuple[int, int]:
    """The number of the first column, and how many columns there are."""
    used = [part.columns for part in parts if len(part.columns)]
    if not used:
        raise DataError(f"{path}: no row has a value, expected {_HOW}")
    low, high = min(int(c.min()) for c in used), max(int(c.max()) for c in used)
    zero_based = low == 0 if options.zero_based == "auto" else options.zero_based
    if low == 0 and not zero_based:
        raise DataError(f"{path}: has the index 0; expected problem.dataset.zero_based: true")
    first = 0 if zero_based else 1
    found = high - first + 1
    if options.features is not None and options.features < found:
        raise DataError(
            f"{path}: has {found} features, but problem.dataset.features is {options.features}"
        )
    return first, options.features or found
