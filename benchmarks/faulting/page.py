"""Writes docs/faults.md from the rows of the cases."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.faulting.row import Row
from benchmarks.markdown import markdown_table

_HEAD = """\
# Faults

What becomes of a sweep when something goes wrong. To survive means: the same choice as the
undisturbed run, bit for bit (key, score, every candidate and every number of the model), no more
counted oracle calls than the budget, and work done again told apart; or one clear error after which
the same command goes on.

`benchmarks/faults` runs every case on small problems and writes this page; a case that does not end
as it must stands here as BROKEN. The quick ones are tests too (`tests/faults`). Nothing is taken on
trust:

- The undisturbed run is a run of its own, in a process of its own. Where a driver that works alone
  is interrupted, killed in a named phase or killed eight times, the loss counts its own
  computations in a file that survives the process, and that count must equal the calls told as
  budget plus those told as repeated. With Ray it is the package's own count that must agree.
- A process dies in the middle of a phase: the loss sends the signal itself, half-way by the books
  of the undisturbed run. Through Ray, where the loss runs elsewhere, driver, Ray and workers are
  killed together when the workers have counted as many calls.
- A fault must have happened: a killed process must have ended by its signal, damaged files must
  cause more work than the stop alone, losses that are not finite must have cost some runs.

"""
_TITLES = {
    "kills": "Processes that die: one machine",
    "optuna": "Processes that die: Optuna",
    "ray": "Processes and nodes that die: Ray Tune",
    "disk": "Disks that are full, slow or broken",
    "damage": "Files that are not what was written",
    "losses": "Losses and gradients that are not finite",
    "core": "Results late, double, wrong, in any order",
    "locks": "Two drivers for one folder",
    "memory": "Memory and disk",
    "hostile": "Files from strangers",
    "endurance": "Clocks and endurance",
}
_TAIL = """
## How it works

- The state of a sweep is the list of outcomes. Reading it and asking for the next task is how a run
  starts, goes on and recovers; minibatches are addressed, so a repeated task gives the same bits.
- Files are written beside their place and moved there when they are on the disk. The state file has
  a checksum and a spare (`state.previous.json`); checkpoints have a checksum each. What cannot be
  read is made again by the task that wrote it, back to x0 if need be.
- Where neither the state file nor its spare can be used, the run starts again from x0 and says so;
  the damaged file is kept as `state.damaged.json`.
- The folder has a marker file, `.grasp_tune.json`, with the name of its sweep. A folder without it
  that holds files of our names is refused, links and pipes in place of our files are neither
  followed nor read, and before every write the driver and its workers look whether the marker is
  still the one that they locked. Checkpoints carry their key and their sweep, the state
  file its sweep, `result.json` the digest of its model.
- Oracle calls are written to a file as they happen, which survives the process. What was asked
  again shows as `repeated` in the result and is never counted as budget. A sweep that fails before
  its probe has ended leaves no folder, so the next one counts from nothing. With `hard_cap=True` a
  task is started only where all its calls still fit into the budget beside those that were made,
  whatever became of them.
- `tests/faults/test_every_point.py` fails every single write, renaming, link, removal and call of
  the loss of a small sweep, one at a time, and leaves after every renaming what a power cut may
  leave (nothing, zeros, half a file, an empty file), and likewise for every artifact of an Optuna
  study in SQLite: each ends with the same bits and exact counts; and so it is with the storage
  of Ray Tune's trials (`tests/ray/test_every_point.py`).
- The lock of a folder belongs to the driver alone: no process that it started keeps it, so a killed
  run can be resumed at once. Its workers end within half a second; what they may still write is the
  same sweep's, with the same bits, and what they call is counted.
- A full disk or a fault that does not pass ends the run with one sentence; nothing that was saved
  is lost. Faults that pass are tried again for some seconds. Before a round is trained, the disk
  is asked whether it can hold the round's checkpoints.
- With `gt.minimize(..., out=...)` and the command line, a sweep through Ray is saved and resumed
  like a local one. Through Ray Tune, what had ended is found in the experiment's storage.
- Memory holds one running vector for the candidate being scored. Without an output folder,
  checkpoints are in a temporary one.

## What is not covered

- `tune.run` with a searcher of your own, killed before Tune's first snapshot of the experiment,
  starts over; calls made until then do not show as repeated (with `gt.minimize(..., out=...)` and
  the command line they do, and what had ended is used). In a study without an output folder
  (`grasp_tune.optuna.run`), calls since a killed worker's last sign of life do not show.
- Many processes may share one Optuna study: that is its purpose, so the second is not refused.
- A loss that is not deterministic (some GPU kernels), or a loss or data with a state or random
  numbers of their own (not those of torch, NumPy and `random`), comes out differently when it is
  repeated. Where a sweep goes on from its folder, a loss at x0 is computed twice to find out (two
  calls, shown as repeated); where it differs, and where a repeated task came out differently, a
  line in `result.notes` says so, and `strict=True` raises. A state that changes more rarely, or
  that only a worker process that died had, is not noticed.
- Sweeps in several threads of one process take turns, since the threads share the random
  generators.
- A process killed with SIGKILL cannot remove its temporary folder (runs without `out`).
- Counts of calls have no checksum: a bit that flips in one changes `repeated`, and what `hard_cap`
  allows.
- The data are not part of the state: resuming with other data in the same folder is not noticed
  unless the start point differs.
"""


def page_text(found: Sequence[tuple[str, Row]], minutes: float, sound: int) -> str:
    """Return the whole page; `found` has (group, row) in order."""
    text = [
        _HEAD,
        f"{sound} of {len(found)} cases ended as they must, in {minutes:.0f} minutes on ",
        _here(),
    ]
    for group in dict.fromkeys(group for group, _ in found):
        rows = [row for other, row in found if other == group]
        text += [f"\n\n## {_TITLES[group]}\n\n", "\n".join(_table(rows))]
    return "".join(text) + "\n" + _TAIL


def _here() -> str:
    """Return a description of the machine."""
    packages = [f"{name} {version(name)}" for name in ("torch", "ray", "optuna")]
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} with {cores} processor{'s' if cores > 1 else ''}"
    return f"{system}\n(Python {platform.python_version()}, {', '.join(packages)})."


def _table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table, without uninformative columns."""
    columns = {"fault": [r.fault for r in rows], "body": [r.body for r in rows]}
    columns |= {"outcome": [r.outcome for r in rows], "calls": [r.calls for r in rows]}
    columns |= {"repeated": [r.repeated for r in rows]}
    kept = {name: [_cell(item) for item in items] for name, items in columns.items() if any(items)}
    return markdown_table(tuple(kept), list(zip(*kept.values(), strict=True)))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
