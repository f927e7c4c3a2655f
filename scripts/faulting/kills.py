"""Processes that die: the driver in each phase and at any moment, a worker, by any signal."""

import random
import signal
import time
from pathlib import Path

from scripts.faulting.row import Row, expect
from scripts.faulting.sweep import BUDGET, Death, Sweep, counted, finish, row, same, start

# Computations of the loss before the death: of the sweep's 598, the first 9 are the probe, the last
# 10 the race.
PHASES = {"probe": 5, "training": 300, "ensemble": 594}


def driver_killed(folder: Path, phase: str, **options: object) -> Row:
    """The driver is killed in a phase; the same command goes on."""
    sweep = Sweep(str(folder / "run"), **options)  # type: ignore[arg-type]
    count = folder / "count"
    code, _ = finish(sweep, Death(PHASES[phase]), count=count)
    expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    asked = counted(count)
    spent = sum(found["print"]["calls"].values())
    repeated = found["calls"]["repeated"]
    expect(asked == spent + repeated, f"the oracle saw {asked}, told are {spent} + {repeated}")
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    return row(f"driver killed (SIGKILL) in the {phase}, then resumed", sweep, found)


def driver_killed_at_random(folder: Path, moments: int, budget: int = BUDGET, seed: int = 0) -> Row:
    """The driver is killed at random moments of its life, each in a sweep of its own."""
    chance = random.Random(seed)
    clean = Sweep(str(folder / "clean"), budget=budget)
    begin = time.monotonic()
    same(clean, finish(clean)[1])
    length = time.monotonic() - begin
    repeated, ended = [], 0
    for number in range(moments):
        schedule = ("promote", "paper")[number % 2]
        sweep = Sweep(
            str(folder / f"run{number}"), schedule=schedule, fused=number % 4 > 1, budget=budget
        )
        process = start(sweep)
        process.join(length * chance.random())
        ended += process.exitcode is not None
        process.kill()
        process.join()
        code, found = finish(sweep)
        expect(code == 0, f"moment {number}: going on ended with code {code}: {found}")
        same(sweep, found)
        repeated.append(found["calls"]["repeated"])
    expect(ended < moments, "all runs had ended before they were killed")
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    spread = f"{min(repeated)} to {max(repeated)}"
    fault = f"driver killed (SIGKILL) at {moments} random moments, then resumed"
    return Row(fault, "local", "same choice, bit for bit", "within T each time", spread)


def driver_killed_over_and_over(folder: Path, times: int, seed: int = 1) -> Row:
    """One sweep whose driver is killed again and again, resumed each time."""
    chance = random.Random(seed)
    sweep = Sweep(str(folder / "run"))
    for _ in range(times):
        process = start(sweep)
        process.join(0.2 + 0.8 * chance.random())
        process.kill()
        process.join()
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    return row(f"driver killed {times} times in one sweep", sweep, found)


def worker_killed(folder: Path) -> Row:
    """A worker process is killed in mid-step; the driver gives its task to another."""
    sweep = Sweep(str(folder / "run"), workers=2)
    code, found = finish(sweep, Death(150, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    same(sweep, found)
    expect(found["calls"]["repeated"] > 0, "no worker died")
    return row("worker process killed (SIGKILL) in mid-step", sweep, found)


def driver_of_workers_killed(folder: Path) -> Row:
    """The driver is killed while its workers are in mid-task; the same command goes on at once."""
    sweep = Sweep(str(folder / "run"), workers=2)
    code, _ = finish(sweep, Death(100, whom="parent"))
    expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    return row("driver killed (SIGKILL) while workers are in mid-task", sweep, found)


def interrupted(folder: Path, number: signal.Signals, *, twice: bool) -> Row:
    """SIGINT or SIGTERM, and perhaps once more while the state is being written."""
    sweep = Sweep(str(folder / "run"))
    count = folder / "count"
    code, _ = finish(sweep, Death(300, number, twice=twice), count=count)
    expect(code == 130, f"it was to stop with code 130, and ended with code {code}")
    state = folder / "run" / "state.json"
    expect(state.exists(), "no state was left")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    expect(_rubbish(folder) == [], f"left behind: {_rubbish(folder)}")
    times = "twice, the second while the state is written" if twice else "once"
    return row(f"{number.name} {times}, then resumed", sweep, found)


def _rubbish(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.tmp"))
