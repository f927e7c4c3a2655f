"""The same faults through Ray Tune and Optuna."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from scripts.faulting.row import Row, expect
from scripts.faulting.sweep import (
    Death,
    Sweep,
    finish,
    in_the_books,
    in_the_middle,
    row,
    same,
    start,
)

ROOT = Path(__file__).resolve().parents[2]

# What lies in a Ray run's folder when a phase has begun.
_SIGNS = {
    "probe": "ray/grasp/*/calls/*",
    "training": "ray/grasp/*/outcomes/probe.json",
    "ensemble": "ray/grasp/*/outcomes/score-*.json",
}


def optuna_driver_killed(folder: Path, phase: str) -> Row:
    """The only process of a study is killed in a phase; the same command goes on."""
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
    """The study is done and the artifact of the chosen point is gone."""
    sweep = Sweep(str(folder / "run"), backend="optuna")
    code, found = finish(sweep)
    expect(code == 0, f"it ended with code {code}: {found}")
    chosen = list((folder / "run" / "artifacts").glob(f"*-{found['print']['key']}"))
    expect(len(chosen) == 1, f"the chosen point has {len(chosen)} artifacts")
    chosen[0].unlink()
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    expect(found["calls"]["repeated"] > 0, "nothing was made again")
    return row("artifact of the chosen point lost after the end", sweep, found)


def optuna_worker_killed(folder: Path) -> Row:
    """A worker process is killed while it holds a task; another takes it over."""
    sweep = Sweep(str(folder / "run"), backend="optuna", workers=2)
    code, found = finish(sweep, Death(100, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    expect((folder / "sign").exists(), "no worker died")
    same(sweep, found)
    return row("worker process killed (SIGKILL) while it holds a cell", sweep, found)


def ray_driver_killed(folder: Path, phase: str) -> Row:
    """The driver of a Tune run is killed in a phase; the same command goes on."""
    sweep = Sweep(str(folder / "run"), backend="ray", schedule="paper", fused=True, workers=2)
    process = start(sweep)
    try:
        _wait_for(folder / "run", _SIGNS[phase], process.is_alive)
    finally:
        process.kill()
        process.join()
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    calls = (folder / "run").glob("ray/grasp/*/calls/*")  # eight bytes a process
    asked = sum(int.from_bytes(path.read_bytes(), "little") for path in calls)
    spent, repeated = sum(found["print"]["calls"].values()), found["calls"]["repeated"]
    expect(asked == spent + repeated, f"workers counted {asked}, told are {spent} + {repeated}")
    return row(f"driver killed (SIGKILL) in the {phase}, then resumed", sweep, found)


def ray_worker_killed(folder: Path) -> Row:
    """A worker of Ray is killed in mid-step; Tune starts its trial again."""
    sweep = Sweep(str(folder / "run"), backend="ray", schedule="paper", workers=2, fused=True)
    code, found = finish(sweep, Death(100, sign=str(folder / "sign")))
    expect(code == 0, f"it ended with code {code}: {found}")
    expect((folder / "sign").exists(), "no worker died")
    same(sweep, found)
    return row("worker process killed (SIGKILL) in mid-step", sweep, found)


def ray_node_killed(folder: Path) -> Row:
    """A node of a cluster of three is killed while it trains (scripts/cluster_demo)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "cluster_demo"), "--budget", "1200"],
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


def _wait_for(folder: Path, pattern: str, alive: object, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not list(folder.glob(pattern)):
        expect(alive(), f"it ended before there was a {pattern}")  # type: ignore[operator]
        expect(time.monotonic() < end, f"no {pattern} after {seconds:.0f} seconds")
        time.sleep(0.02)
