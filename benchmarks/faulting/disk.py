"""Disks that are full, slow or unreliable."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from benchmarks.faulting.patches import full_disk, replaced, unreliable_disk
from benchmarks.faulting.row import Broken, Row, expect
from benchmarks.faulting.sweep import Sweep, row, run, same
from grasp_tune.core.errors import CheckpointError


def full_while_writing(folder: Path, what: str) -> Row:
    """The disk is full when a checkpoint or the state is written; later there is space again."""
    sweep = Sweep(str(folder / "run"))
    mark = {"checkpoint": ".safetensors", "state": "state.json"}[what]
    with full_disk(mark, after=sys.maxsize) as written:
        run(replace(sweep, out=str(folder / "undisturbed")))
    # The state is written at time intervals; a third write happens in every run.
    after = len(written) // 2 if what == "checkpoint" else 2
    with full_disk(mark, after) as written:
        sentence = _refusal(sweep)
    expect(len(written) > after, f"only {len(written)} were written")
    expect("disk is full" in sentence, f"nothing said of a full disk: {sentence}")
    rubbish = [str(path) for path in folder.rglob("*.tmp")]
    expect(not rubbish, f"left behind: {rubbish}")
    return _go_on(f"disk full while a {what} is written, then room again", sweep)


def really_full(folder: Path) -> Row:
    """A small file system fills up (root only); later there is space again."""
    with small_filesystem(folder / "disk") as disk:
        sweep, before = Sweep(str(disk / "run")), _free(disk)
        run(sweep)
        taken = before - _free(disk)
        shutil.rmtree(disk / "run")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(_free(disk) - taken // 2))
        sentence = _refusal(sweep)
        expect("disk is full" in sentence, f"nothing said of a full disk: {sentence}")
        ballast.unlink()
        return _go_on("file system runs full (tmpfs), then room again", sweep)


def obviously_too_small(folder: Path) -> Row:
    """A disk too small for a round's checkpoints is refused before the round is trained."""
    sweep = Sweep(str(folder / "run"))
    with replaced(shutil, "disk_usage", lambda path: SimpleNamespace(free=1)):
        sentence = _refusal(sweep)
    expect("lacks room" in sentence and "checkpoints of 26 numbers" in sentence, sentence)
    return _go_on("disk too small for what a round will write", sweep)


def unreliable(folder: Path, rate: float = 0.1, pause: float = 0.002) -> Row:
    """One file operation in ten fails with a temporary error, and all are slow."""
    sweep = Sweep(str(folder / "run"))
    with unreliable_disk(rate, pause=pause) as raised:
        result = run(sweep)
    found = {"print": sweep.print_of(result), "calls": result.calls}
    same(sweep, found)
    expect(raised, "nothing failed")
    return row(f"storage slow and failing now and then ({len(raised)} errors)", sweep, found)


def broken_for_good(folder: Path) -> Row:
    """Every file operation fails: the run stops after a few attempts with one sentence."""
    sweep = Sweep(str(folder / "run"))
    begin = time.monotonic()
    with unreliable_disk(1.0):
        sentence = _refusal(sweep)
    expect("cannot be written" in sentence, sentence)
    expect(time.monotonic() - begin < 120, "it tried for more than two minutes")
    return _go_on("storage fails for good, is mended, then resumed", sweep)


def _free(disk: Path) -> int:
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def _refusal(sweep: Sweep) -> str:
    try:
        run(sweep)
    except CheckpointError as error:
        expect("\n" not in str(error), f"more than one line: {error}")
        return str(error)
    raise Broken("it ended as if the disk had room")


def _go_on(fault: str, sweep: Sweep) -> Row:
    result = run(sweep)
    found = {"print": sweep.print_of(result), "calls": result.calls}
    same(sweep, found)
    return row(fault, sweep, found, "one clear error; resumed to the same choice")


class NoMount(Exception):
    """This process may not mount a file system."""


@contextmanager
def small_filesystem(folder: Path, size: str = "2m") -> Iterator[Path]:
    """Mount a small tmpfs; raises `NoMount` if that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoMount(f"mounting a tmpfs is not allowed here ({error})") from None
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
