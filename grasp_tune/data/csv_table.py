"""Tables in text files, as spreadsheets and databases write them.

By hand: pandas fills short rows with blanks in silence and cannot name the row that is wrong.
"""

import re
from collections.abc import Iterator
from csv import reader
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from grasp_tune.config.errors import DataError, require, shown
from grasp_tune.data.data import (
    KEY,
    LARGEST,
    Array,
    Data,
    check_memory,
    existing_file,
    reading,
    table_data,
)
from grasp_tune.data.options import Csv

_BLANKS = frozenset(
    {"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "?", "null", "NULL", "None", r"\N"}
)
_PACKED = {b"PK\x03\x04": "a spreadsheet or an archive", b"\x1f\x8b": "a compressed file"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")  # 1234,5 or 1.234,5
_ANY_COMMA = re.compile(r"[-+]?\d[\d.]*,\d[\d.,]*")  # or 1,234.5
_MAX_WORDS = 100  # different words of one column; more are names or dates, not categories
_FEW_WORDS = 20  # so many may well be mostly numbers, as those of streets and grades are
_DIGITS = 15  # of a whole number; doubles do not tell larger ones apart


@dataclass(frozen=True)
class _Table:
    """The columns of a file as text by their names, and the number of each row."""

    file: Path
    columns: dict[str, list[str]]
    rows: list[int]


def csv_table(options: Csv) -> Data:
    """A table with a header line; see `Csv` for what becomes of words, blanks and scales."""
    table = _read(options.path, "path", options)
    file, columns = table.file, table.columns
    kept = [name for name in columns if name not in options.drop]
    target = options.target or (kept or list(columns))[-1]
    for name, key in [(target, "target"), *((name, "drop") for name in options.drop)]:
        fault = f"has no column {shown(name)}, only {', '.join(list(columns)[:20])}"
        require(name in columns, f"{file}: {fault}; set {KEY}.{key}")
    features = [name for name in kept if name != target]
    require(features, f"{file}: has no column but the label, expected features")
    for name in (*features, target):
        _check_commas(file, name, columns[name])
    words = {name: _words(file, name, columns[name]) if options.encode else [] for name in features}
    words = dict(sorted(words.items(), key=lambda item: bool(item[1])))  # numbers first
    check_memory(file.name, 8.0 * len(table.rows) * len(features), options.max_gib)
    arrays = [_encoded(table, words, options), _labels(table, target)]
    if options.test_path is not None:
        test = _read(options.test_path, "test_path", options)
        theirs = [name for name in test.columns if name not in (target, *options.drop)]
        fault = "its columns differ from those of the training rows"
        require(theirs == features and target in test.columns, f"{test.file}: {fault}")
        arrays += [_encoded(test, words, options), _labels(test, target)]
    numbers = [name for name, found in words.items() if not found]
    notes = tuple(_notes(columns, numbers, words))
    return table_data(file.stem, arrays, options, options.task, numbers=len(numbers), notes=notes)


def _read(path: str, key: str, options: Csv) -> _Table:
    file = existing_file(path, key, "a text file with a header line and one row per line")
    # A field needs at least two characters of the file and eight bytes of memory.
    check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    (_, header), *rows = _lines(file, options)
    names = [name or f"column {at}" for at, name in enumerate(header, 1)]
    values = [list(column) for column in zip(*(fields for _, fields in rows), strict=True)]
    pairs = list(zip(names, values or [[] for _ in names], strict=True))
    # The first line is a row where it has numbers, and no words or some that come again below it.
    counts = any(names == [str(at + by) for at in range(len(names))] for by in (0, 1))
    words = [name in found for name, found in pairs if not _reads(name)]
    row = len(words) < len(names) and (any(words) or not words) and not counts
    require(not row, f"{file}: its first line holds numbers, expected the names of the columns")
    twice = next((name for name in names if names.count(name) > 1), None)
    fault = f"has the column {shown(twice)} twice, expected a name for each"
    require(twice is None, f"{file}: {fault}")
    require(rows, f"{file}: has no rows, expected a header line and rows below it")
    kept = [given or any(found) for given, (_, found) in zip(header, pairs, strict=True)]
    columns = dict(compress(pairs, kept))  # a comma too many in each line makes no column
    if options.decimal == ",":
        columns = {name: list(map(_with_point, found)) for name, found in columns.items()}
    return _Table(file, columns, [row for row, _ in rows])


def _lines(file: Path, options: Csv) -> list[tuple[int, list[str]]]:
    """The lines that are not blank, by their numbers, as fields; the first is the header."""
    with file.open("rb") as binary:
        begin = binary.read(4)
    packed = next((kind for mark, kind in _PACKED.items() if begin.startswith(mark)), "")
    require(not packed, f"{file}: is {packed}, expected text; save or unpack it as a CSV file")
    encoding = "utf-16" if begin.startswith(_UTF_16) else options.encoding
    how = f"text in {encoding.upper()}, a header line and one row per line; other texts need "
    how += f"{KEY}.encoding, such as cp1252"
    encoding = "utf-8-sig" if encoding.lower() == "utf-8" else encoding
    with reading(file, "a table", how), file.open(newline="", encoding=encoding) as stream:
        first = stream.readline()
        told = re.fullmatch(r"sep=(.)\s*", first)  # as spreadsheets write
        likely = told[1] if told else max(",;\t|", key=first.count)
        if not told:
            stream.seek(0)
        mark = options.delimiter or likely
        found = reader(stream, delimiter=mark, strict=True, skipinitialspace=mark != "\t")
        lines = [
            (row, [field.strip() for field in fields])
            for row, fields in enumerate(found, 1 + bool(told))
            if any(map(str.strip, fields))
        ]
    width = len(lines[0][1]) if lines else 0
    other = f"is divided by {likely!r}: set {KEY}.delimiter to it"
    other = other if likely in first else f"is {shown(first.strip())}"
    fault = f"has {width} columns, expected a label and features; its first line {other}"
    require(width > 1, f"{file}: {fault}")
    for row, fields in lines:
        fault = f"got {len(fields)} columns, expected {width}"
        require(len(fields) == width, f"{file}: row {row}: {fault}")
    return lines


def _with_point(text: str) -> str:
    """A number with a decimal comma as Python writes it; other text as it is."""
    return text.replace(".", "").replace(",", ".") if _WITH_COMMA.fullmatch(text) else text


def _check_commas(file: Path, name: str, values: list[str]) -> None:
    """Raise DataError where a column of numbers has commas, before they count as words."""
    first = next(filter(_ANY_COMMA.fullmatch, values), "")
    if first and all(_reads(x) or _ANY_COMMA.fullmatch(x) for x in set(values) - _BLANKS):
        got = f"{file}: column {shown(name)}: got {shown(first)}, a number with a comma"
        remedy = "where it comes before decimals, else leave out marks between thousands"
        raise DataError(f'{got}; set {KEY}.decimal: "," {remedy}')


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # 2024_01 is a name, though Python reads it
    except ValueError:
        return None


def _reads(text: str) -> bool:
    return _number(text) is not None


def _words(file: Path, name: str, values: list[str]) -> list[str]:
    """The words of a column, in order, if they can be categories; none where it holds numbers."""
    found = sorted(set(values) - _BLANKS)
    remedy = f"leave the column out with {KEY}.drop: [{name}]"
    require(found, f"{file}: column {shown(name)} is blank in every row; {remedy}")
    if not (words := [word for word in found if not _reads(word)]):
        return []
    where, first = f"{file}: column {shown(name)}: got", shown(words[0])
    mostly = len(found) > _FEW_WORDS and 2 * len(words) < len(found)
    fault = f"{first} among {len(found) - len(words)} different numbers; leave the field blank "
    require(not mostly, f"{where} {fault}where the number is not known, or {remedy}")
    filled = sum(value not in _BLANKS for value in values)
    single = len(found) > _FEW_WORDS and 2 * len(found) > filled
    fault = f"{len(found)} different words such as {first} in {filled} rows, expected numbers "
    fault += f"without unit or currency, or at most {_MAX_WORDS} words that come again"
    require(not single and len(found) <= _MAX_WORDS, f"{where} {fault}; {remedy}")
    return found


def _encoded(table: _Table, words: dict[str, list[str]], options: Csv) -> Array:
    """(rows, columns): numbers, NaN for a blank, or 0 and 1 for every word of a column."""
    parts: list[list[float]] = []
    for name, known in words.items():
        if known:
            parts += ([float(value == word) for value in table.columns[name]] for word in known)
        else:
            fields = zip(table.rows, table.columns[name], strict=True)
            parts.append([_cell(table.file, name, row, text, options) for row, text in fields])
    return np.array(parts, dtype=np.float64).T


def _cell(file: Path, name: str, row: int, text: str, options: Csv) -> float:
    value = _number(text)
    if value is not None and abs(value) <= LARGEST:
        return value
    if options.encode and text in _BLANKS:
        return np.nan
    endless = value is not None and not np.isfinite(value)
    what = "a blank" if text in _BLANKS else "nan or inf" if endless else shown(text)
    wanted = "a number" if value is None or endless else "a number below 3e38"
    remedy = f"set {KEY}.encode: true, or leave the column out with {KEY}.drop: [{name}]"
    remedy = "where it is not known, leave the field blank" if options.encode else remedy
    where = f"{file}: row {row}: column {shown(name)}"
    raise DataError(f"{where}: got {what}, expected {wanted}; {remedy}")


def _labels(table: _Table, name: str) -> Array:
    """Numbers where all are; else text, if it can be classes."""
    values = table.columns[name]
    for row, value in zip(table.rows, values, strict=True):
        blank = value in _BLANKS - {"None"}  # which may well be a class
        require(not blank, f"{table.file}: row {row}: the label is blank; leave such rows out")
    numbers, different = [_number(value) for value in values], len(set(values))
    long = any(value.isdecimal() and len(value) > _DIGITS for value in values)
    if None not in numbers and not long:
        return np.array(numbers)
    first = next((v for v, found in zip(values, numbers, strict=True) if found is None), values[0])
    fault = f"{table.file}: column {shown(name)}: got {different} different labels such as "
    fault += f"{shown(first)} in {len(values)} rows, expected classes, or numbers such as "
    fault += "1234.5, without currency, unit or marks between thousands"
    require(different <= _MAX_WORDS or 2 * different <= len(values), fault)
    return np.array(values)


def _notes(
    columns: dict[str, list[str]], numbers: list[str], words: dict[str, list[str]]
) -> Iterator[str]:
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
