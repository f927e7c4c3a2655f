"""Clocks that jump, and hundreds of sweeps in one process."""

import gc
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faulting.patches import jumping_clocks, replaced
from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import Sweep, row, run, same

GROWTH = 24 * 2**20  # bytes that the allocator may keep after hundreds of sweeps


def clocks_jump(folder: Path) -> Row:
    """Both clocks jump by days whenever they are read."""
    sweep = Sweep(str(folder / "run"))
    with jumping_clocks():
        result = run(sweep)
    found = {"print": sweep.print_of(result), "calls": result.calls}
    same(sweep, found)
    return row("clocks jump by days, forward and back", sweep, found)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The resources of a process."""

    memory: int  # bytes, resident
    threads: int
    handles: int
    temporary: int  # our files and folders in the temporary folder

    @classmethod
    def now(cls, folder: Path) -> "Holdings":
        """Return the resources of this process."""
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            threading.active_count() + len(os.listdir("/proc/self/task")),
            len(os.listdir("/proc/self/fd")),
            sum(1 for _ in folder.rglob("*")),
        )


def soak(folder: Path, sweeps: int, budget: int = 300) -> Row:
    """Many tiny sweeps, with and without a folder, alone and with workers."""
    temporary = folder / "tmp"
    temporary.mkdir()
    begin = Holdings.now(temporary)
    with replaced(tempfile, "tempdir", str(temporary)):
        for number in range(sweeps):
            if number == sweeps // 5:
                begin = Holdings.now(temporary)  # after imports and warm-up
            _one(folder, number, budget)
    end = Holdings.now(temporary)
    growth = end.memory - begin.memory
    expect(growth < GROWTH, f"{growth} bytes more after {sweeps} sweeps")
    expect(end.threads == begin.threads, f"threads: {begin.threads}, then {end.threads}")
    expect(end.handles == begin.handles, f"file handles: {begin.handles}, then {end.handles}")
    expect(end.temporary == 0, f"{end.temporary} temporary files are left")
    outcome = (
        f"threads, file handles and temporary files as before, {growth / 1e6:+.1f} MB of memory"
    )
    return Row(f"{sweeps} sweeps in one process", "local", outcome)


def _one(folder: Path, number: int, budget: int) -> None:
    out = str(folder / "runs" / str(number % 7)) if number % 2 else None
    sweep = Sweep(
        out,  # type: ignore[arg-type]
        budget=budget,
        seed=number,
        fused=number % 3 == 0,
        workers=2 if number % 10 == 4 else 1,
    )
    result = run(sweep)
    expect(sum(result.calls.values()) <= budget, f"sweep {number} spent {result.calls}")
    if out is not None:  # seven folders, each reused by sweeps with other seeds
        _clear(Path(out))


def _clear(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
