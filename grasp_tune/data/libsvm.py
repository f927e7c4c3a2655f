"""LIBSVM's text format: `label index:value index:value ...  # comment`, one row per line.

Read by hand, strictly: scikit-learn's reader does not name the line that is wrong, and takes
indices that would fill the memory.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grasp_tune.config.errors import DataError, shown
from grasp_tune.data.data import Data
from grasp_tune.data.options import Libsvm
from grasp_tune.data.table import KEY, Array, Table, check_memory, existing_file, table_data

_MAX_INDEX = 10_000_000
_HOW = "a text file with lines such as: +1 3:0.5 7:1"


class _Rows(NamedTuple):
    """The rows of one file, as they were read."""

    labels: Array  # (rows,)
    counts: Array  # (rows,), values in each row
    columns: Array  # (values,), as numbered in the file
    values: Array  # (values,)


def libsvm(options: Libsvm) -> Data:
    """The rows of a LIBSVM file, and of a second one as test rows."""
    path = existing_file(options.path, "path", _HOW)
    parts = [_read(path, options.max_gib)]
    if options.test_path is not None:
        test = existing_file(options.test_path, "test_path", _HOW)
        parts.append(_read(test, options.max_gib))
    used = np.concatenate([part.columns for part in parts])
    if not len(used):
        raise DataError(f"{path}: no row has a value, expected {_HOW}")
    zero_based = used.min() == 0 if options.zero_based == "auto" else options.zero_based
    if used.min() == 0 and not zero_based:
        raise DataError(f"{path}: has the index 0; expected {KEY}.zero_based: true")
    first = 0 if zero_based else 1
    found = int(used.max()) - first + 1
    features = options.features or found
    if features < found:
        raise DataError(f"{path}: has {found} features, but {KEY}.features is {features}")
    rows = sum(len(part.labels) for part in parts)
    check_memory(path.name, 4.0 * rows * features, options.max_gib)
    arrays = []
    for part in parts:
        x = np.zeros((len(part.counts), features), dtype=np.float32)
        x[np.repeat(np.arange(len(x)), part.counts), part.columns - first] = part.values
        arrays += [x, part.labels]
    return table_data(path.name, Table(*arrays), options, options.task)


def _read(path: Path, max_gib: float) -> _Rows:
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
                text = b" ".join(words)[:200].decode("utf-8", "replace")
                raise DataError(
                    f"{path}: line {number}: got {shown(text)}, expected a number, then "
                    f"index:value pairs with growing indices up to {_MAX_INDEX} and finite values"
                ) from None
            counts.append(len(words) - 1)
    if not labels:
        raise DataError(f"{path}: has no rows, expected {_HOW}")
    return _Rows(*map(np.array, (labels, counts, columns, values)))


def _number(word: bytes) -> float:
    value = float(word)
    # Python reads 1_000, which no other reader of the format does.
    if not math.isfinite(value) or b"_" in word:
        raise ValueError(word)
    return value
