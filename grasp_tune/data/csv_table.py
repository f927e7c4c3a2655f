"""Tables in text files with a header line, as people have them: words, blanks, raw scales.

Read by hand rather than by pandas, which fills short rows with blanks in silence, cannot name the
row that is wrong, and would be one more package to install for the most usual kind of file.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from grasp_tune.config.errors import DataError, require, shown
from grasp_tune.data.data import Data
from grasp_tune.data.options import Csv
from grasp_tune.data.table import KEY, Array, check_memory, existing_file, reading, table_data

_BLANKS = frozenset({"", "NA", "N/A", "?", "null", "NULL"})
_MAX_WORDS = 100  # different words of one column; more are names or dates, not categories

Columns = dict[str, list[str]]


def csv_table(options: Csv) -> Data:
    """A table with a header line; see `Csv` for what becomes of words, blanks and scales."""
    file, columns = _read(options.path, "path", options)
    target = options.target or list(columns)[-1]
    for name, key in [(target, "target"), *((name, "drop") for name in options.drop)]:
        fault = f"has no column {shown(name)}, only {', '.join(list(columns)[:20])}"
        require(name in columns, f"{file}: {fault}; set {KEY}.{key}")
    features = [name for name in columns if name not in (target, *options.drop)]
    require(features, f"{file}: has no column but the label, expected features")
    words = {name: _words(file, name, columns[name]) if options.encode else [] for name in features}
    words = dict(sorted(words.items(), key=lambda item: bool(item[1])))  # numbers first
    check_memory(file.name, 8.0 * len(columns[target]) * len(features), options.max_gib)
    arrays = [_encoded(file, columns, words, options), _labels(file, columns[target])]
    if options.test_path is not None:
        test, more = _read(options.test_path, "test_path", options)
        same = [name for name in more if name not in (target, *options.drop)] == features
        require(same, f"{test}: its columns differ from those of the training rows")
        arrays += [_encoded(test, more, words, options), _labels(test, more[target])]
    numbers = [name for name, found in words.items() if not found]
    notes = tuple(_notes(columns, numbers, words))
    return table_data(file.stem, arrays, options, options.task, numbers=len(numbers), notes=notes)


def _read(path: str, key: str, options: Csv) -> tuple[Path, Columns]:
    """The file, and its columns as text by their names."""
    file = existing_file(path, key, "a text file with a header line and one row per line")
    # A field needs at least two characters of the file and eight bytes of memory.
    check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    with reading(file, "a table"), file.open(newline="", encoding="utf-8-sig") as stream:
        first = stream.readline()
        likely = max(",;\t", key=first.count)
        stream.seek(0)
        lines = csv.reader(stream, delimiter=options.delimiter or likely, strict=True)
        header, *rows = [[field.strip() for field in line] for line in lines] or [[]]
    width, twice = len(header), [name for name in header if header.count(name) > 1]
    other = f"; its first line is divided by {likely!r}: set {KEY}.delimiter to it"
    fault = f"has {width} columns, expected a label and features"
    require(width > 1, f"{file}: {fault}{other if likely in first else ''}")
    require(not twice, f"{file}: has the column {shown(min(twice, default=''))} twice")
    for row, fields in enumerate(rows, 2):
        if len(fields) not in (0, width):
            raise DataError(f"{file}: row {row}: got {len(fields)} columns, expected {width}")
    require(any(rows), f"{file}: has no rows, expected a header line and rows below it")
    return file, dict(zip(header, map(list, zip(*filter(None, rows), strict=True)), strict=True))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _words(file: Path, name: str, values: list[str]) -> list[str]:
    """The words of a column, in order, if they can be categories; none where it holds numbers."""
    found = sorted(set(values) - _BLANKS)
    remedy = f"leave the column out with {KEY}.drop: [{name}]"
    require(found, f"{file}: column {shown(name)} is blank in every row; {remedy}")
    if None not in map(_number, found):
        return []
    fault = f"got {len(found)} different words such as {shown(found[0])}, expected numbers or at "
    fault = f"{file}: column {shown(name)}: {fault}most {_MAX_WORDS} words; {remedy}"
    require(len(found) <= _MAX_WORDS, fault)
    return found


def _encoded(file: Path, columns: Columns, words: dict[str, list[str]], options: Csv) -> Array:
    """(rows, columns): numbers, NaN for a blank, or 0 and 1 for every word of a column."""
    parts: list[list[float]] = []
    for name, known in words.items():
        if known:
            parts += ([float(value == word) for value in columns[name]] for word in known)
        else:
            fields = enumerate(columns[name], 2)
            parts.append([_cell(file, name, row, text, options) for row, text in fields])
    return np.array(parts, dtype=np.float64).T


def _cell(file: Path, name: str, row: int, text: str, options: Csv) -> float:
    value = _number(text)
    if value is not None and math.isfinite(value):
        return value
    if options.encode and text in _BLANKS:
        return math.nan
    what = "a blank" if text in _BLANKS else "nan or inf" if value is not None else shown(text)
    remedy = f"set {KEY}.encode: true, or leave the column out with {KEY}.drop: [{name}]"
    remedy = "where it is not known, leave the field blank" if options.encode else remedy
    where = f"{file}: row {row}: column {shown(name)}"
    raise DataError(f"{where}: got {what}, expected a number; {remedy}")


def _labels(file: Path, values: list[str]) -> Array:
    """Numbers where all are; else text."""
    row = values.index("") + 2 if "" in values else 0
    require(not row, f"{file}: row {row}: the label is blank")
    numbers = [_number(value) for value in values]
    return np.array(values if None in numbers else numbers)


def _notes(columns: Columns, numbers: list[str], words: dict[str, list[str]]) -> Iterator[str]:
    """What was done to the columns, as sentences."""
    if listed := ", ".join(
        f"{name} ({len(found)} words)" for name, found in words.items() if found
    ):
        yield f"Columns of words became one column of 0 and 1 for every word: {listed}."
    for name in numbers:
        rows = range(len(columns[name]) + 1)
        if len(rows) > 3 and columns[name] in (list(map(str, rows[:-1])), list(map(str, rows[1:]))):
            yield f"Column {name} counts the rows; {KEY}.drop: [{name}] leaves it out."
    blanks = {name: sum(value in _BLANKS for value in columns[name]) for name in numbers}
    if listed := ", ".join(f"{name} ({count} rows)" for name, count in blanks.items() if count):
        yield f"Blanks were filled with the mean of their column: {listed}."
