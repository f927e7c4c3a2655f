"""Files of rows: where they are, how large they may be, and the simplest kind, .npz."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from grasp_tune.config.errors import DataError, MissingDataError, shown
from grasp_tune.data.data import Data
from grasp_tune.data.options import Npz
from grasp_tune.data.table import Array, Table, table_data

GIB = 1 << 30
_KEY = "problem.dataset"


def existing_file(path: str, key: str, how: str) -> Path:
    """The path of a file that is there; else an error that says how to provide it."""
    file = Path(path).expanduser()
    if not file.is_file():
        what = "a folder" if file.is_dir() else "not there"
        raise MissingDataError(f"{key}: {file} is {what}; expected {how}")
    return file


def check_memory(name: str, needed: float, max_gib: float) -> None:
    """Raise DataError when `needed` bytes are more than the options allow."""
    if needed > max_gib * GIB:
        raise DataError(
            f"{name}: needs {needed / GIB:.3g} GiB of memory, expected at most {max_gib:g} "
            f"({_KEY}.max_gib)"
        )


def npz(options: Npz) -> Data:
    """Arrays of one .npz file: (rows, ...) inputs, one label per row."""
    how = (
        f"an .npz file with arrays {options.x} (rows, ...) and {options.y} (rows,), and if you "
        f"have test rows {options.x_test} and {options.y_test}; numpy.savez writes one"
    )
    file = existing_file(options.path, f"{_KEY}.path", how)
    try:
        with zipfile.ZipFile(file) as archive:
            # Before anything is unpacked: a small file can hold very much nothing.
            check_memory(file.name, sum(i.file_size for i in archive.infolist()), options.max_gib)
        with np.load(file, allow_pickle=False) as arrays:
            table = _npz_table(arrays, options, file.name)
    except DataError:
        raise
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise DataError(f"{file}: cannot be read as .npz ({error}); expected {how}") from error
    return table_data(file.stem, table, options, options.task)


def _npz_table(arrays: np.lib.npyio.NpzFile, options: Npz, name: str) -> Table:
    def array(key: str, option: str) -> Array:
        if key not in arrays.files:
            there = ", ".join(sorted(arrays.files)[:20]) or "none"
            raise DataError(
                f"{name}: has no array {shown(key)}, only {there}; name the right one with "
                f"{_KEY}.{option}"
            )
        values: Array = arrays[key]
        if not np.issubdtype(values.dtype, np.number) and values.dtype.kind not in "bU":
            raise DataError(f"{name}: {key} holds {values.dtype}, expected numbers")
        return values

    x, y = array(options.x, "x"), array(options.y, "y")
    if not np.issubdtype(x.dtype, np.number) or np.issubdtype(x.dtype, np.complexfloating):
        raise DataError(f"{name}: {options.x} holds {x.dtype}, expected real numbers")
    if x.ndim < 2:
        raise DataError(f"{name}: {options.x} has shape {x.shape}, expected (rows, features)")
    if options.x_test not in arrays.files and options.y_test not in arrays.files:
        return Table(x, y)
    return Table(x, y, array(options.x_test, "x_test"), array(options.y_test, "y_test"))
