"""Killed processes: the driver in each phase and at random moments, workers, by several signals."""

import random
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import (
    BUDGET,
    Death,
    Sweep,
    counted,
    finish,
    in_the_books,
    in_the_middle,
    row,
    same,
)


def driver_killed(folder: Path, phase: str, **options: object) -> Row:
    """The driver is killed in a phase; the same command resumes."""
    sweep = Sweep(str(folder / "run"), **options)  # type: ignore[arg-type]
    count = folder / "count"
    code, _ = finish(sweep, in_the_middle(sweep, phase), count=count)
    expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    in_the_books(found, count)
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    kind = "".join(f", {value}" for value in options.values())
    return row(f"driver killed (SIGKILL) in the {phase}, then resumed{kind}", sweep, found)


def driver_killed_at_random(folder: Path, moments: int, budget: int = BUDGET, seed: int = 0) -> Row:
    """The driver is killed at random moments, each in a sweep of its own."""
    chance, repeated = random.Random(seed), list[int]()
    tried = 0
    while len(repeated) < moments:
        tried += 1
        expect(tried <= 3 * moments, "most runs had ended before they were killed")
        schedule, fused = ("promote", "paper")[tried % 2], tried % 4 > 1
        out = str(folder / f"run{tried}")
        sweep = Sweep(out, schedule=schedule, fused=fused, budget=budget)
        # Up to 20 ms after a computation: during the next ones, or while a file is written.
        call = chance.randint(1, _computations(sweep.bare))
        code, _ = finish(sweep, Death(call, delay=0.02 * chance.random()))
        if code == 0:
            continue
        expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
        code, found = finish(sweep)
        expect(code == 0, f"killed at {call}: going on ended with code {code}: {found}")
        same(sweep, found)
        repeated.append(found["calls"]["repeated"])
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    spread = f"{min(repeated)} to {max(repeated)}"
    fault = f"driver killed (SIGKILL) at {moments} random moments, then resumed"
    return Row(fault, "local", "same choice, bit for bit", f"within {budget} each time", spread)


@cache
def _computations(sweep: Sweep) -> int:
    """Return how many times the loss is computed."""
    with TemporaryDirectory() as folder:
        count = Path(folder) / "count"
        code, found = finish(replace(sweep, out=f"{folder}/run"), count=count)
        expect(code == 0, f"the undisturbed run ended with code {code}: {found}")
        return counted(count)


def driver_killed_over_and_over(folder: Path, times: int, seed: int = 1) -> Row:
    """The driver of one sweep is killed again and again, and resumed each time."""
    chance, count = random.Random(seed), folder / "count"
    sweep = Sweep(str(folder / "run"))
    longest = _computations(sweep.bare) // (times + 1)  # it must not end before the last kill
    for number in range(times):
        code, _ = finish(sweep, Death(chance.randint(1, longest)), count=count)
        expect(code == -signal.SIGKILL, f"death {number} was to kill it; it ended with code {code}")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    in_the_books(found, count)
    return row(f"driver killed (SIGKILL) {times} times in one sweep", sweep, found)


def worker_killed(folder: Path) -> Row:
    """A worker process is killed during a step; the driver gives its task to another one."""
    sweep = Sweep(str(folder / "run"), workers=2)
    code, found = finish(sweep, Death(150, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    same(sweep, found)
    expect(found["calls"]["repeated"] > 0, "no worker died")
    return row("worker process killed (SIGKILL) in mid-step", sweep, found)


def driver_of_workers_killed(folder: Path) -> Row:
    """The driver is killed while its workers run tasks; the same command resumes at once."""
    sweep = Sweep(str(folder / "run"), workers=2)
    code, _ = finish(sweep, Death(100, whom="parent"))
    expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    return row("driver killed (SIGKILL) while workers are in mid-task", sweep, found)


def interrupted(folder: Path, number: signal.Signals, *, twice: bool) -> Row:
    """SIGINT or SIGTERM; if `twice`, once more while the state is being written."""
    sweep = Sweep(str(folder / "run"))
    count = folder / "count"
    code, _ = finish(sweep, in_the_middle(sweep, "training", number, twice=twice), count=count)
    expect(code == 130, f"it was to stop with code 130, and ended with code {code}")
    state = folder / "run" / "state.json"
    expect(state.exists(), "no state was left")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    in_the_books(found, count)
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    times = "twice, the second while the state is written" if twice else "once"
    return row(f"{number.name} {times}, then resumed", sweep, found)


def _rubbish(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.tmp"))
