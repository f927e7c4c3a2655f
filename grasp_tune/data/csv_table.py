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
from grasp_tune.data import data as d
from grasp_tune.data.options import Csv

_NONE = ("", "?", "null", "NULL", "None", r"\N")
_BLANKS = frozenset(("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", *_NONE))
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")  # 1234,5 or 1.234,5
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


def csv_table(options: Csv) -> d.Data:
    """A table with a header line; see `Csv` for what becomes of words, blanks and scales."""
    table = _read(options.path, "path", options)
    file, columns = table.file, table.columns
    kept = [name for name in columns if name not in options.drop]
    target = options.target or (kept or list(columns))[-1]
    for name, key in [(target, "target"), *((name, "drop") for name in options.drop)]:
        fault = f"has no column {shown(name)}, only {', '.join(list(columns)[:20])}"
        require(file, name in columns, f"{fault}; set {d.KEY}.{key}")
    features = [name for name in kept if name != target]
    require(file, features, "has no column but the label, expected features")
    for name in (*features, target):  # before such numbers count as words
        comma = next(filter(_ANY_COMMA.fullmatch, columns[name]), None)
        values = {*columns[name]} - _BLANKS
        if comma and all(_number(x) is not None or _ANY_COMMA.fullmatch(x) for x in values):
            remedy = "where it comes before decimals, else leave out marks between thousands"
            got = f"{file}: column {shown(name)}: got {shown(comma)}, a number with a comma"
            raise DataError(f'{got}; set {d.KEY}.decimal: "," {remedy}')
    words = {name: _words(file, name, columns[name]) if options.encode else [] for name in features}
    words = dict(sorted(words.items(), key=lambda item: bool(item[1])))  # numbers first
    d.check_memory(file.name, 8.0 * len(table.rows) * len(features), options.max_gib)
    arrays = [_encoded(table, words, options), _labels(table, target)]
    if options.test_path is not None:
        test = _read(options.test_path, "test_path", options)
        theirs = [name for name in test.columns if name not in (target, *options.drop)]
        same = theirs == features and target in test.columns
        require(test.file, same, "its columns differ from those of the training rows")
        arrays += [_encoded(test, words, options), _labels(test, target)]
    numbers = [name for name, found in words.items() if not found]
    notes = tuple(_notes(columns, numbers, words))
    return d.table_data(file.stem, arrays, options, options.task, numbers=len(numbers), notes=notes)


def _read(path: str, key: str, options: Csv) -> _Table:
    file = d.existing_file(path, key, "a text file with a header line and one row per line")
    # A field needs at least two characters of the file and eight bytes of memory.
    d.check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    (_, header), *rows = _lines(file, options)
    names = [name or f"column {at}" for at, name in enumerate(header, 1)]
    values = list(zip(*(fields for _, fields in rows), strict=True)) or [()] * len(names)
    # The first line is a row where it has numbers, and no words or some that come again below it.
    counts = any(names == [str(at + by) for at in range(len(names))] for by in (0, 1))
    pairs = zip(names, values, strict=True)
    words = [name in found for name, found in pairs if _number(name) is None]
    row = len(words) < len(names) and (any(words) or not words) and not counts
    require(file, not row, "its first line holds numbers, expected the names of the columns")
    twice = next((name for name in names if names.count(name) > 1), None)
    require(file, not twice, f"has the column {shown(twice)} twice, expected a name for each")
    require(file, rows, "has no rows, expected a header line and rows below it")
    columns = {name: list(found) for name, found in zip(names, values, strict=True)}
    if options.decimal == ",":
        columns = {name: list(map(_with_point, found)) for name, found in columns.items()}
    kept = [given or any(found) for given, found in zip(header, values, strict=True)]
    # A comma too many in each line makes no column.
    return _Table(file, dict(compress(columns.items(), kept)), [row for row, _ in rows])


def _lines(file: Path, options: Csv) -> list[tuple[int, list[str]]]:
    """The lines that are not blank, by their numbers, as fields; the first is the header."""
    with file.open("rb") as binary:
        encoding = "utf-16" if binary.read(2) in _UTF_16 else options.encoding
    how = f"text in {encoding.upper()}, a header line and one row per line; other texts need "
    how += f"{d.KEY}.encoding, such as cp1252"
    encoding = "utf-8-sig" if encoding.lower() == "utf-8" else encoding
    with d.reading(file, "a table", how), file.open(newline="", encoding=encoding) as stream:
        first = stream.readline()
        told = re.fullmatch(r"sep=(.)\s*", first)  # as spreadsheets write
        likely = told[1] if told else max(",;\t|", key=first.count)
        stream.seek(0)
        mark = options.delimiter or likely
        found = reader(stream, delimiter=mark, strict=True, skipinitialspace=mark != "\t")
        stripped = ([field.strip() for field in fields] for fields in found)
        lines = [(row, fields) for row, fields in enumerate(stripped, 1) if any(fields)]
        lines = lines[1:] if told else lines
    width = len(lines[0][1]) if lines else 0
    other = f"is divided by {likely!r}: set {d.KEY}.delimiter to it"
    other = other if likely in first else f"is {shown(first.strip())}"
    fault = f"has {width} columns, expected a label and features; its first line {other}"
    require(file, width > 1, fault)
    for row, fields in lines:
        got = len(fields)
        require(f"{file}: row {row}", got == width, f"got {got} columns, expected {width}")
    return lines


def _with_point(text: str) -> str:
    """A number with a decimal comma as Python writes it; other text as it is."""
    return text.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # 2024_01 is a name, though Python reads it
    except ValueError:
        return None


def _words(file: Path, name: str, values: list[str]) -> list[str]:
    """The words of a column, in order, if they can be categories; none where it holds numbers."""
    found, where = sorted({*values} - _BLANKS), f"{file}: column {shown(name)}"
    remedy = f"leave the column out with {d.KEY}.drop: [{name}]"
    require(file, found, f"column {shown(name)} is blank in every row; {remedy}")
    if not (words := [word for word in found if _number(word) is None]):
        return []
    first, few = shown(words[0]), len(found) <= _FEW_WORDS
    fault = f"got {first} among {len(found) - len(words)} different numbers; leave the field blank "
    fault += f"where the number is not known, or {remedy}"
    require(where, few or 2 * len(words) >= len(found), fault)
    filled = sum(value not in _BLANKS for value in values)
    fault = f"got {len(found)} different words such as {first} in {filled} rows, expected numbers "
    fault += f"without unit or currency, or at most {_MAX_WORDS} words that come again; {remedy}"
    again = 2 * len(found) <= filled and len(found) <= _MAX_WORDS
    require(where, few or again, fault)
    return found


def _encoded(table: _Table, words: dict[str, list[str]], options: Csv) -> d.Array:
    """(rows, columns): numbers, NaN for a blank, or 0 and 1 for every word of a column."""
    parts: list[list[float]] = []
    for name, known in words.items():
        values = table.columns[name]
        if known:
            parts += ([float(value == word) for value in values] for word in known)
            continue
        parts.append(numbers := [])
        for row, text in zip(table.rows, values, strict=True):
            blank, value = text in _BLANKS, _number(text)
            if options.encode and blank:
                value = np.nan
            elif value is None or not abs(value) <= d.LARGEST:
                endless = value is not None and not np.isfinite(value)
                got = "a blank" if blank else "nan or inf" if endless else shown(text)
                wanted = "a number" if value is None or endless else "a number below 3e38"
                remedy = f"encode: true, or leave the column out with {d.KEY}.drop: [{name}]"
                remedy = f"set {d.KEY}.{remedy}" if not options.encode else "or leave it blank"
                where = f"{table.file}: row {row}: column {shown(name)}"
                raise DataError(f"{where}: got {got}, expected {wanted}; {remedy}")
            numbers.append(value)
    return np.array(parts, dtype=np.float64).T


def _labels(table: _Table, name: str) -> d.Array:
    """Numbers where all are; else text, if it can be classes."""
    values = table.columns[name]
    for row, value in zip(table.rows, values, strict=True):
        blank = value in _BLANKS - {"None"}  # which may well be a class
        require(f"{table.file}: row {row}", not blank, "the label is blank; leave such rows out")
    words, different = [x for x in values if _number(x) is None], len({*values})
    if not words and not any(value.isdecimal() and len(value) > _DIGITS for value in values):
        return np.array([float(value) for value in values])
    first = shown([*words, *values][0])
    fault = f"got {different} different labels such as {first} in {len(values)} rows, expected "
    fault += "classes, or numbers such as 1234.5, without currency, unit or marks for thousands"
    few = different <= _MAX_WORDS or 2 * different <= len(values)
    require(f"{table.file}: column {shown(name)}", few, fault)
    return np.array(values)


def _notes(
    columns: dict[str, list[str]], numbers: list[str], words: dict[str, list[str]]
) -> Iterator[str]:
    listed = ", ".join(f"{name} ({len(found)} words)" for name, found in words.items() if found)
    if listed:
        yield f"Columns of words became one column of 0 and 1 for every word: {listed}."
    for name in numbers:
        rows = [str(row) for row in range(len(columns[name]) + 1)]
        if len(rows) > 3 and columns[name] in (rows[:-1], rows[1:]):
            yield f"Column {name} counts the rows; {d.KEY}.drop: [{name}] leaves it out."
    blanks = {name: sum(value in _BLANKS for value in columns[name]) for name in numbers}
    if listed := ", ".join(f"{name} ({count} rows)" for name, count in blanks.items() if count):
        yield f"Blanks were filled with the mean of their column: {listed}."
