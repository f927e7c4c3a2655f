"""Raw results: one small JSON file per (workload, method, seed), written whole or not at all."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from grasp_tune.runtime.files import read_json, write_json_atomic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


@dataclass(frozen=True, slots=True)
class Record:
    """What one method made of one workload with one seed."""

    workload: str
    method: str
    seed: int
    budget: int  # T
    calls: int  # oracle calls used
    seconds: float
    diverged: bool
    loss: float
    gradient: float
    accuracy: float
    start_loss: float  # at x0
    note: str
    source: str  # fingerprint of the code that decides; empty for peers


def write_record(folder: Path, record: Record) -> None:
    """Save a record; numbers that JSON does not know become null or words."""
    path = record_path(folder, record.workload, record.method, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, {key: to_json(value) for key, value in asdict(record).items()})


def record_path(folder: Path, workload: str, method: str, seed: int) -> Path:
    """Return where the record is kept."""
    return folder / workload / f"{method}.{seed}.json"


def read_records(folder: Path) -> Iterator[Record]:
    """Yield every record of the folder, in the order of their names."""
    names = {field.name for field in fields(Record)}
    for path in sorted(folder.glob("*/*.json")):
        data: Any = read_json(path, 1 << 20)
        yield Record(**{key: from_json(data[key]) for key in names})


def to_json(value: Any) -> Any:
    """Return a value that strict JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, float):
        return float(f"{value:.7g}")  # as many digits as the measurement has
    return value


def from_json(value: Any) -> Any:
    """Return what `to_json` was given."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def fingerprint() -> str:
    """Return a short digest of the code on which a sweep's outcome depends."""
    found = hashlib.blake2b(digest_size=6)
    for layer in ("core", "schedules", "optimizers", "engine", "runtime", "executors"):
        for path in sorted((ROOT / "grasp_tune" / layer).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
