"""Files of rows: where they are, how large they may be, and the two simple kinds, .npz and .csv."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from grasp_tune.config.dataset_options import Csv, Npz
from grasp_tune.config.errors import DataError, MissingDataError, shown
from grasp_tune.data.data import Data
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
    return table_data(file.stem, table, options, test_share=options.test_share, task=options.task)


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


def csv_table(options: Csv) -> Data:
    """A table with a header line: numbers in every column, the label's may be words."""
    how = "a text file with a header line and one row per line"
    file = existing_file(options.path, f"{_KEY}.path", how)
    columns, x, y = _read_csv(file, options, None)
    x_test = y_test = None
    if options.test_path is not None:
        test = existing_file(options.test_path, f"{_KEY}.test_path", how)
        _, x_test, y_test = _read_csv(test, options, columns)
    table = Table(x, y, x_test, y_test)
    return table_data(file.stem, table, options, test_share=options.test_share, task=options.task)


def _read_csv(
    file: Path, options: Csv, expected: list[str] | None
) -> tuple[list[str], Array, Array]:
    # A number needs at least two characters of the file and eight bytes of memory.
    check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    rows: list[list[float]] = []
    labels: list[str] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream, delimiter=options.delimiter, strict=True)
            header = [column.strip() for column in next(lines, [])]
            target = _target(header, options.target, file)
            if expected is not None and header != expected:
                raise DataError(f"{file}: its columns differ from those of the training rows")
            for numbers, label in _csv_rows(lines, header, target, file):
                rows.append(numbers)
                labels.append(label)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as a table ({error})") from error
    if not rows:
        raise DataError(f"{file}: has no rows, expected a header line and rows below it")
    return header, np.array(rows, dtype=np.float64), _numbers_if_possible(labels)


def _target(header: list[str], target: str | None, file: Path) -> int:
    if len(header) < 2:
        raise DataError(f"{file}: has {len(header)} columns, expected a label and features")
    if target is None:
        return len(header) - 1
    if target not in header:
        raise DataError(
            f"{file}: has no column {shown(target)}, only {', '.join(header[:20])}; set "
            f"{_KEY}.target"
        )
    return header.index(target)


def _csv_rows(
    lines: Iterator[list[str]], header: list[str], target: int, file: Path
) -> Iterator[tuple[list[float], str]]:
    for number, fields in enumerate(lines, start=2):
        if not fields:
            continue
        if len(fields) != len(header):
            raise DataError(
                f"{file}: row {number}: got {len(fields)} columns, expected {len(header)}"
            )
        label = fields.pop(target).strip()
        try:
            yield [float(field) for field in fields], label
        except ValueError as error:
            raise DataError(f"{file}: row {number}: {error}, expected a number") from None


def _numbers_if_possible(labels: list[str]) -> Array:
    try:
        return np.array([float(label) for label in labels])
    except ValueError:
        return np.array(labels)
