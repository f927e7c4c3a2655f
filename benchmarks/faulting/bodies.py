"""Faults on Ray Tune and Optuna."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import (
    PHASES,
    Death,
    Sweep,
    expected,
    finish,
    in_the_books,
    in_the_middle,
    row,
    same,
    start,
)

ROOT = Path(__file__).resolve().parents[2]


def optuna_driver_killed(folder: Path, phase: str) -> Row:
    """The only process of a study is killed in a phase; the same command resumes it."""
    sweep = Sweep(str(folder / "run"), backend="optuna")
    count = folder / "count"
    code, _ = finish(sweep, in_the_middle(sweep, phase), count=count)
    expect(code == -signal.SIGKILL, f"it was to be killed, and ended with code {code}")
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    in_the_books(found, count)
    return row(f"driver killed (SIGKILL) in the {phase}, then resumed", sweep, found)


def optuna_artifact_lost(folder: Path) -> Row:
    """The study has ended and the artifact of the chosen point is missing."""
    sweep = Sweep(str(folder / "run"), backend="optuna")
    code, found = finish(sweep)
    expect(code == 0, f"it ended with code {code}: {found}")
    chosen = list((folder / "run" / "artifacts").glob(f"*-{found['print']['key']}.safetensors"))
    expect(len(chosen) == 1, f"the chosen point has {len(chosen)} artifacts")
    chosen[0].unlink()
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    expect(found["calls"]["repeated"] > 0, "nothing was made again")
    return row("artifact of the chosen point lost after the end", sweep, found)


def optuna_worker_killed(folder: Path) -> Row:
    """A worker process is killed during a task; another one takes the task over."""
    sweep = Sweep(str(folder / "run"), backend="optuna", workers=2)
    code, found = finish(sweep, Death(100, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    expect((folder / "sign").exists(), "no worker died")
    same(sweep, found)
    return row("worker process killed (SIGKILL) while it holds a cell", sweep, found)


def ray_driver_killed(folder: Path, phase: str) -> Row:
    """A sweep and its Ray are killed half-way through a phase; the same command resumes it.

    If only the driver of a Tune run is killed: see tests/ray/test_restore.py.
    """
    sweep = Sweep(
        str(folder / "run"), backend="ray", schedule="paper", fused=True, workers=2, pause=0.02
    )
    books = expected(sweep)["calls"]
    names = list(PHASES.values())
    before = sum(books[name] for name in names[: list(PHASES).index(phase)])
    length = books[PHASES[phase]]
    process = start(sweep)
    assert process.pid is not None
    try:
        asked = _wait_for_calls(folder / "run", before + 1 + length // 2, process.is_alive)
    finally:
        for number in (process.pid, *_descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.join()
    expect(asked < before + length, f"{asked} calls were made: the {phase} was over")
    code, found = finish(replace(sweep, pause=0.0))
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    asked, spent = _asked(folder / "run"), sum(found["print"]["calls"].values())
    repeated = found["calls"]["repeated"]
    expect(asked == spent + repeated, f"workers counted {asked}, told are {spent} + {repeated}")
    expect(0 < repeated < before + length, f"{repeated} calls were made again")
    fault = f"driver, its Ray and all workers killed (SIGKILL) in the {phase}, then resumed"
    return row(fault, sweep, found)


def ray_worker_killed(folder: Path) -> Row:
    """A Ray worker is killed during a step; another one starts its task again."""
    sweep = Sweep(str(folder / "run"), backend="ray", schedule="paper", workers=2, fused=True)
    code, found = finish(sweep, Death(100, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    expect((folder / "sign").exists(), "no worker died")
    same(sweep, found)
    return row("worker process killed (SIGKILL) in mid-step", sweep, found)


def ray_node_killed(folder: Path) -> Row:
    """A node of a cluster of three is killed during training (benchmarks/cluster_demo)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cluster_demo"), "--budget", "1200"],
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        check=False,
    )
    expect(done.returncode == 0, f"{done.stdout[-500:]} {done.stderr[-500:]}")
    expect("bit for bit: yes" in done.stdout, done.stdout[-500:])
    told = re.search(r"calls: (\d+) of (\d+), repeated after the fault: (\d+)", done.stdout)
    expect(told, done.stdout[-500:])
    assert told is not None
    return Row(
        "node of the cluster killed (SIGKILL) in mid-training",
        "ray, 3 nodes",
        "same choice, bit for bit",
        f"{told[1]} of {told[2]}",
        told[3],
    )


def _descendants(process: int) -> list[int]:
    """Return the descendants of a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name, in brackets, may contain anything; state and parent come after it.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = list[int](), [process]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def _asked(folder: Path) -> int:
    """Return the oracle calls of all workers of a Ray run so far; each counts in eight bytes."""
    files = folder.glob("calls/*")
    return sum(int.from_bytes(path.read_bytes(), "little") for path in files)


def _wait_for_calls(
    folder: Path, calls: int, alive: Callable[[], bool], seconds: float = 300.0
) -> int:
    end = time.monotonic() + seconds
    while (asked := _asked(folder)) < calls:
        expect(alive(), f"it ended after {asked} calls, before it was to be killed")
        expect(time.monotonic() < end, f"only {asked} calls after {seconds:.0f} seconds")
        time.sleep(0.01)
    return asked
