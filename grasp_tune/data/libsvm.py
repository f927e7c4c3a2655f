"""LIBSVM's text format: `label index:value index:value ...  # comment`, one row per line.

Read by hand, strictly: scikit-learn's reader does not name the line that is wrong, and takes
indices that would fill the memory.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import numpy as np

from grasp_tune.config.errors import DataError, shown
from grasp_tune.data.data import Data
from grasp_tune.data.options import Libsvm
from grasp_tune.data.table import KEY, Array, Table, check_memory, existing_file, table_data

_MAX_INDEX = 10_000_000
_HOW = "a text file with lines such as: +1 3:0.5 7:1"
_NUMBER = rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_ROW = re.compile(rb"(%b)((?:\s+[0-9]{1,9}:%b)*)\s*" % (_NUMBER, _NUMBER))


def libsvm(options: Libsvm) -> Data:
    """The rows of a LIBSVM file, and of a second one as test rows."""
    path = existing_file(options.path, "path", _HOW)
    files = [path]
    if options.test_path is not None:
        files.append(existing_file(options.test_path, "test_path", _HOW))
    parts = [_read(file, options.max_gib) for file in files]
    used = np.concatenate([columns for _, _, columns, _ in parts])
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
    rows = sum(len(labels) for labels, *_ in parts)
    check_memory(path.name, 4.0 * rows * features, options.max_gib)
    arrays = []
    for labels, counts, columns, values in parts:
        x = np.zeros((len(labels), features), dtype=np.float32)
        x[np.repeat(np.arange(len(x)), counts), columns - first] = values
        arrays += [x, labels]
    return table_data(path.name, Table(*arrays), options, options.task)


def _read(path: Path, max_gib: float) -> list[Array]:
    """Labels, values in each row, columns and values; DataError names the first bad line."""
    # A value takes at least four characters in the file and sixteen bytes here.
    check_memory(path.name, 4.0 * path.stat().st_size, max_gib)
    labels, counts, columns, values = array("d"), array("q"), array("q"), array("d")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.partition(b"#")[0].strip()
            if not text:
                continue
            match = _ROW.fullmatch(text)
            pairs = [word.split(b":") for word in match[2].split()] if match else []
            found = [int(column) for column, _ in pairs]
            if not match or found != sorted(set(found)) or max(found, default=0) > _MAX_INDEX:
                raise DataError(
                    f"{path}: line {number}: got {shown(text[:200].decode('utf-8', 'replace'))}, "
                    "expected a number, then index:value pairs with growing indices up to "
                    f"{_MAX_INDEX} and finite values"
                )
            labels.append(float(match[1]))
            counts.append(len(pairs))
            columns.extend(found)
            values.extend(float(value) for _, value in pairs)
    if not labels:
        raise DataError(f"{path}: has no rows, expected {_HOW}")
    return [np.array(item) for item in (labels, counts, columns, values)]
