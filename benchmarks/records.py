"""Raw results: one row per finished run, one compressed file of JSON lines per table.

`results/NAME.jsonl.gz` holds the sorted rows of a table. Every finished run appends a line to
`results/NAME.new.jsonl`, so that stopping a command loses one run per process at most. A later line
replaces an earlier one with the same key. `benchmarks/benchmark pack` merges both files; the same
rows always give the same bytes.
"""

import fcntl
import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from grasp_tune.runtime.files import replace_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PACKED, FRESH = ".jsonl.gz", ".new.jsonl"

Row = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one kind of benchmark."""

    folder: Path
    name: str
    key: tuple[str, ...]  # the fields that identify a row

    @property
    def packed(self) -> Path:
        """The compressed file."""
        return self.folder / f"{self.name}{PACKED}"

    @property
    def fresh(self) -> Path:
        """The file with the rows that are not packed yet."""
        return self.folder / f"{self.name}{FRESH}"

    def rows(self) -> dict[Key, Row]:
        """Return every row by its key, sorted."""
        found = {self._key(row): row for row in (*self._read_packed(), *self._read_fresh())}
        return dict(sorted(found.items()))

    def append(self, row: Row) -> None:
        """Add the row of a finished run; several processes may do so at the same time."""
        line = _line(row).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.fresh.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, io.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # a process died while writing
                    line = b"\n" + line
            file.write(line)

    def pack(self) -> int:
        """Merge the fresh rows into the compressed file and return its number of rows.

        A run that ends meanwhile waits; the fresh file is emptied, not removed.
        """
        with self.fresh.open("a+b") as fresh:
            fcntl.flock(fresh, fcntl.LOCK_EX)
            rows = self.rows()
            text = "".join(_line(row) for row in rows.values()).encode()
            replace_atomically(
                self.packed, lambda file: file.write(gzip.compress(text, compresslevel=9, mtime=0))
            )
            fresh.truncate(0)
        return len(rows)

    def _key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def _read_packed(self) -> Iterator[Row]:
        if self.packed.exists():
            yield from map(_row, gzip.decompress(self.packed.read_bytes()).splitlines())

    def _read_fresh(self) -> Iterator[Row]:
        if self.fresh.exists():
            for line in self.fresh.read_bytes().splitlines():
                try:
                    yield _row(line)
                except ValueError:
                    continue  # cut short by a stop; that run is made again


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one method on one workload with one seed."""

    workload: str
    method: str
    seed: int
    budget: int  # T
    calls: int  # oracle calls used
    seconds: float
    diverged: bool
    loss: float  # on the fixed sample of training rows
    gradient: float
    accuracy: float  # on test rows
    start_loss: float  # at x0
    note: str
    source: str  # `fingerprint` of our code; empty for peers
    test_loss: float = math.nan  # on test rows, in evaluation mode; NaN in rows before 2026-11


def contest_table(folder: Path, name: str) -> Table:
    """Return the table of records with this name: `peers` or `ablation`."""
    return Table(folder, name, ("workload", "method", "seed"))


def cells_table(folder: Path) -> Table:
    """Return the table of the cells of the paper's tables."""
    return Table(folder, "tables", ("table", "schedule", "first", "second", "share", "seed"))


def choices_table(folder: Path) -> Table:
    """Return the table of simulated final choices."""
    return Table(folder, "ensemble", ("workload", "by", "seed"))


def sizes_table(folder: Path) -> Table:
    """Return the table of runs at the paper's own size."""
    return Table(folder, "paper_size", ("run", "seed"))


def all_tables(folder: Path) -> tuple[Table, ...]:
    """Return every table that `pack` merges."""
    contests = (contest_table(folder, name) for name in ("peers", "ablation"))
    return (*contests, cells_table(folder), choices_table(folder), sizes_table(folder))


def read_records(table: Table) -> Iterator[Record]:
    """Yield every record of a contest, sorted by workload, method and seed."""
    names = {field.name for field in fields(Record)}
    for row in table.rows().values():
        yield Record(**{key: value for key, value in row.items() if key in names})


def write_record(table: Table, record: Record) -> None:
    """Add a record to its table."""
    table.append(asdict(record))


def _line(row: Row) -> str:
    return json.dumps(_to_json(row), separators=(",", ":")) + "\n"


def _row(line: bytes) -> Row:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"a row of results: got {line[:40]!r}, expected an object")
    row: Row = _from_json(found)
    return row


def _to_json(value: Any) -> Any:
    """Return a value for strict JSON: NaN and infinities become words."""
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, float):
        return float(f"{value:.7g}")  # more digits mean nothing
    return value


def _from_json(value: Any) -> Any:
    """Return the value that `_to_json` was called with."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def fingerprint() -> str:
    """Return a short digest of the code that a sweep's outcome depends on."""
    found = hashlib.blake2b(digest_size=6)
    for layer in ("core", "schedules", "optimizers", "engine", "runtime", "executors"):
        for path in sorted((ROOT / "grasp_tune" / layer).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
