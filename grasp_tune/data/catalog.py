"""From the options of a config to the data: of functions, packages and tables in files."""

import math
import re
import zipfile
from collections.abc import Iterator
from csv import reader as csv_rows
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from grasp_tune.config.entry_point import call_entry_point, load_entry_point
from grasp_tune.config.errors import DataError, EntryPointError, require, shown
from grasp_tune.data.data import KEY, Array, Data, check_memory, existing_file, reading, table_data
from grasp_tune.data.options import BreastCancer, Csv, Dataset, Digits, Libsvm, Npz, OwnData, Table
from grasp_tune.engine.problem import Rows, as_data
from grasp_tune.engine.streams import fixed_randomness
from grasp_tune.extras import need

_BLANKS = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "?", "null", "NULL"})
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")  # 1234,5 or 1.234,5
_MAX_WORDS = 100  # different words of one column; more are names or dates, not categories
_FEW_WORDS = 20  # so many may well be mostly numbers, as those of streets and grades are
_DIGITS = 15  # of a whole number; doubles do not tell larger ones apart

Columns = dict[str, list[str]]


def load_data(options: Dataset) -> Data:
    """The data that a `problem.dataset` section describes; files are read here, and only here."""
    name = options.loader or f"{__name__}:{options.name}"
    data: Data = load_entry_point(name, f"{KEY}.name")(options)
    return data


def own_data(options: OwnData) -> Data:
    given = call_entry_point(options.name, KEY, options.options)
    if isinstance(given, Data):
        return given
    parts = given if isinstance(given, (tuple, list)) else (given,)
    if all(isinstance(part, TorchDataset | DataLoader) for part in parts):
        parts = [array for source in parts for array in _all_rows(source, options)]
    if len(parts) not in (2, 4):
        got = f"{len(parts)} values" if parts is given else type(given).__name__
        raise EntryPointError(
            f"{KEY}.name: {options.name} returned {got}, expected (x, y), (x, y, x_test, y_test) "
            "or a Data"
        )
    arrays = [p.detach().cpu().numpy() if isinstance(p, Tensor) else np.asarray(p) for p in parts]
    return table_data(options.name, arrays, Table(name=options.name))


def _all_rows(source: Any, options: OwnData) -> list[Array]:
    """Inputs and labels of all rows of a `Dataset` or a `DataLoader`."""
    if isinstance(source, TorchDataset):
        collate = load_entry_point(options.collate_fn, f"{KEY}.collate_fn")
        source = DataLoader(source, 256, num_workers=options.num_workers, collate_fn=collate)
    if isinstance(rows := as_data(source, 256), Rows):  # every row once, in order
        how = {"num_workers": source.num_workers, "collate_fn": rows.collate}
        source = DataLoader(rows.items, 256, **how)
    try:
        with fixed_randomness(0, "rows"):
            x, y = zip(*list(source), strict=True)
        return [np.concatenate([np.asarray(part) for part in parts]) for parts in (x, y)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise EntryPointError(
            f"{KEY}.name: {options.name} gave batches that are no pairs of arrays of one shape "
            f"({error}); expected (x, y), which {KEY}.collate_fn can make of a list of rows"
        ) from error


def digits(options: Digits) -> Data:
    bunch = _sklearn("digits").load_digits()
    # The files count ink from 0 to 16.
    return table_data("digits", [bunch.images[:, None] / 16.0, bunch.target], options)


def spirals(options: Digits) -> Data:
    """Points on three spiral arms with a little noise, the same every time."""
    random, arm = np.random.default_rng(7004), np.arange(3000) % 3
    radius = random.random(3000)
    angle = 4 * radius + arm * 2 * np.pi / 3 + 0.15 * random.standard_normal(3000)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return table_data("spirals", [x, arm], options)


def breast_cancer(options: BreastCancer) -> Data:
    bunch = _sklearn("breast_cancer").load_breast_cancer()
    labels = tuple(map(str, bunch.target_names))
    return table_data("breast_cancer", [bunch.data, bunch.target], options, labels=labels)


def libsvm(options: Libsvm) -> Data:
    """The rows of a file in LIBSVM's text format, and of a second one as test rows."""
    how = "a text file with lines such as: +1 3:0.5 7:1"
    files = [existing_file(options.path, "path", how)]
    if options.test_path is not None:
        files.append(existing_file(options.test_path, "test_path", how))
    for file in files:  # a value takes at least four characters in the file and sixteen bytes here
        check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    read = _sklearn("libsvm").load_svmlight_files
    names, zero = [str(file) for file in files], options.zero_based
    with reading(" or ".join(names), "LIBSVM", how):
        parts = read(names, n_features=options.features, dtype=np.float32, zero_based=zero)
    needed = 4.0 * sum(np.prod(part.shape) for part in parts[::2])
    check_memory(files[0].name, needed, options.max_gib)
    arrays = [part.toarray() if part.ndim == 2 else part for part in parts]
    return table_data(files[0].name, arrays, options, options.task)


def _sklearn(name: str) -> Any:
    return need("sklearn.datasets", "datasets", f"the data set {name}", "scikit-learn")


def npz(options: Npz) -> Data:
    """Arrays of one .npz file: (rows, ...) inputs, one label per row."""
    how = (
        f"an .npz file with arrays {options.x} (rows, ...) and {options.y} (rows,), and if you "
        f"have test rows {options.x_test} and {options.y_test}; numpy.savez writes one"
    )
    file, table = existing_file(options.path, "path", how), []
    with reading(file, ".npz", how):
        with zipfile.ZipFile(file) as archive:
            # Before anything is unpacked: a small file can hold very much nothing.
            check_memory(file.name, sum(i.file_size for i in archive.infolist()), options.max_gib)
        with np.load(file, allow_pickle=False) as arrays:
            tests = not {options.x_test, options.y_test}.isdisjoint(arrays.files)
            for key in ("x", "y", "x_test", "y_test")[: 4 if tests else 2]:
                name = getattr(options, key)
                there = ", ".join(sorted(arrays.files)[:20]) or "none"
                fault = f"has no array {shown(name)}, only {there}; name the right one with "
                require(name in arrays.files, f"{file.name}: {fault}{KEY}.{key}")
                table.append(values := arrays[name])
                right = values.dtype.kind in ("iuf" if key.startswith("x") else "iufbU")
                fault = f"{name} holds {values.dtype}, expected real numbers"
                require(right, f"{file.name}: {fault}")
    fault = f"{options.x} has shape {table[0].shape}, expected (rows, features)"
    require(table[0].ndim > 1, f"{file.name}: {fault}")
    return table_data(file.stem, table, options, options.task)


def csv(options: Csv) -> Data:
    """A table with a header line; see `Csv` for what becomes of words, blanks and scales."""
    file, columns, rows = _read_csv(options.path, "path", options)
    target = (
        options.target or [*columns, *(name for name in columns if name not in options.drop)][-1]
    )
    for name, key in [(target, "target"), *((name, "drop") for name in options.drop)]:
        fault = f"has no column {shown(name)}, only {', '.join(list(columns)[:20])}"
        require(name in columns, f"{file}: {fault}; set {KEY}.{key}")
    features = [name for name in columns if name not in (target, *options.drop)]
    require(features, f"{file}: has no column but the label, expected features")
    for name in (*features, target):
        _check_commas(file, name, columns[name])
    words = {name: _words(file, name, columns[name]) if options.encode else [] for name in features}
    words = dict(sorted(words.items(), key=lambda item: bool(item[1])))  # numbers first
    check_memory(file.name, 8.0 * len(columns[target]) * len(features), options.max_gib)
    arrays = [_encoded(file, columns, rows, words, options), _labels(file, columns, rows, target)]
    if options.test_path is not None:
        test, more, rows = _read_csv(options.test_path, "test_path", options)
        same = [name for name in more if name not in (target, *options.drop)] == features
        require(same, f"{test}: its columns differ from those of the training rows")
        arrays += [_encoded(test, more, rows, words, options), _labels(test, more, rows, target)]
    numbers = [name for name, found in words.items() if not found]
    notes = tuple(_notes(columns, numbers, words))
    return table_data(file.stem, arrays, options, options.task, numbers=len(numbers), notes=notes)


def _read_csv(path: str, key: str, options: Csv) -> tuple[Path, Columns, list[int]]:
    """The file, its columns as text by their names, and the number of each row that is not blank.

    By hand: pandas fills short rows with blanks in silence and cannot name the row that is wrong.
    """
    file = existing_file(path, key, "a text file with a header line and one row per line")
    # A field needs at least two characters of the file and eight bytes of memory.
    check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    how = "text in UTF-8, a header line and one row per line"
    with reading(file, "a table", how), file.open(newline="", encoding="utf-8-sig") as stream:
        first = stream.readline()
        likely = max(",;\t|", key=first.count)
        stream.seek(0)
        lines = csv_rows(stream, delimiter=options.delimiter or likely, strict=True)
        header, *rows = [[field.strip() for field in line] for line in lines] or [[]]
    header = [name or f"column {at}" for at, name in enumerate(header, 1)]
    width, twice = len(header), [name for name in header if header.count(name) > 1]
    other = f"is divided by {likely!r}: set {KEY}.delimiter to it"
    other = other if likely in first else f"is {shown(first.strip())}"
    fault = f"has {width * bool(first)} columns, expected a label and features; its first line"
    require(width > 1, f"{file}: {fault} {other}")
    require(not twice, f"{file}: has the column {shown(min(twice, default=''))} twice")
    counts = any(header == [str(at + by) for at in range(width)] for by in (0, 1))
    fault = "its first line holds numbers, expected the names of the columns"
    require(counts or None in map(_number, header), f"{file}: {fault}")
    for row, fields in enumerate(rows, 2):
        if len(fields) not in (0, width):
            raise DataError(f"{file}: row {row}: got {len(fields)} columns, expected {width}")
    require(any(rows), f"{file}: has no rows, expected a header line and rows below it")
    if options.decimal == ",":
        rows = [[_with_point(field) for field in fields] for fields in rows]
    columns = dict(zip(header, map(list, zip(*filter(None, rows), strict=True)), strict=True))
    return file, columns, [row for row, fields in enumerate(rows, 2) if fields]


def _with_point(text: str) -> str:
    """A number with a decimal comma as Python writes it; other text as it is."""
    return text.replace(".", "").replace(",", ".") if _WITH_COMMA.fullmatch(text) else text


def _check_commas(file: Path, name: str, values: list[str]) -> None:
    """Raise DataError where a column of numbers has decimal commas, before they count as words."""
    first = next(filter(_WITH_COMMA.fullmatch, values), "")
    if first and None not in (_number(_with_point(text)) for text in set(values) - _BLANKS):
        got = f"{file}: column {shown(name)}: got {shown(first)}, a number with a comma"
        raise DataError(f'{got}; set {KEY}.decimal: "," or write decimal points')


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
    if not (words := [word for word in found if _number(word) is None]):
        return []
    where, first = f"{file}: column {shown(name)}: got", shown(words[0])
    mostly = len(found) > _FEW_WORDS and 2 * len(words) < len(found)
    fault = f"{first} among {len(found) - len(words)} different numbers; leave the field blank "
    require(not mostly, f"{where} {fault}where the number is not known, or {remedy}")
    fault = f"{len(found)} different words such as {first}, expected numbers or at most "
    require(len(found) <= _MAX_WORDS, f"{where} {fault}{_MAX_WORDS} words; {remedy}")
    return found


def _encoded(
    file: Path, columns: Columns, rows: list[int], words: dict[str, list[str]], options: Csv
) -> Array:
    """(rows, columns): numbers, NaN for a blank, or 0 and 1 for every word of a column."""
    parts: list[list[float]] = []
    for name, known in words.items():
        if known:
            parts += ([float(value == word) for value in columns[name]] for word in known)
        else:
            fields = zip(rows, columns[name], strict=True)
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


def _labels(file: Path, columns: Columns, rows: list[int], name: str) -> Array:
    """Numbers where all are; else text, if it can be classes."""
    values = columns[name]
    for row, value in zip(rows, values, strict=True):
        require(value not in _BLANKS, f"{file}: row {row}: the label is blank")
    numbers, different = [_number(value) for value in values], len(set(values))
    long = any(value.isdecimal() and len(value) > _DIGITS for value in values)
    if None not in numbers and not long:
        return np.array(numbers)
    first = next((v for v, found in zip(values, numbers, strict=True) if found is None), values[0])
    fault = f"{file}: column {shown(name)}: got {different} different labels such as "
    fault += f"{shown(first)} in {len(values)} rows, expected classes, or numbers such as "
    fault += "1234.5, without currency, unit or marks between thousands"
    require(different <= _MAX_WORDS or 2 * different <= len(values), fault)
    return np.array(values)


def _notes(columns: Columns, numbers: list[str], words: dict[str, list[str]]) -> Iterator[str]:
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
