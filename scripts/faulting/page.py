"""docs/faults.md from what the cases found."""

from collections.abc import Sequence

from scripts.benchmarking.markdown import markdown_table
from scripts.faulting.row import Row

_HEAD = """\
# Faults

What becomes of a sweep when something goes wrong. Written by `scripts/faults`, which runs every
case on small problems; the quick ones are tests too (`tests/faults`). To survive means: the same
choice as the undisturbed run, bit for bit (key, score, every candidate and every number of the
model), no more counted oracle calls than the budget, work done again told apart; or one clear
error after which the same command goes on.

"""
_TAIL = """
## How it works

- The state of a sweep is the list of outcomes. Reading it and asking for the next task is how a run
  starts, goes on and recovers; minibatches are addressed, so a repeated task gives the same bits.
- Files are written beside their place and moved there when they are on the disk. The state file has
  a checksum and a spare (`state.previous.json`); checkpoints have a checksum each. What cannot be
  read is made again by the task that wrote it, back to x0 if need be.
- Where neither the state file nor its spare can be used, the run starts again from x0 and says so;
  the damaged file is kept as `state.damaged.json`.
- Oracle calls are counted in a mapped file, which survives the process. What was asked again shows
  as `repeated` in the result and is never counted as budget.
- The lock of a folder belongs to the driver and its workers. Workers end within a second of their
  driver, so a killed run can be resumed at once, and never two of them write to one folder.
- A full disk or a fault that does not pass ends the run with one sentence; nothing that was saved
  is lost. Faults that pass are tried again for some seconds. Before a round is trained, the disk
  is asked whether it can hold the round's checkpoints.
- Memory holds one running vector for the candidate being scored. Without an output folder,
  checkpoints beyond 256 MB go to a temporary folder.

## What is not covered

- `tune.run` with a searcher of your own, killed before Tune's first snapshot of the experiment,
  starts over; calls made until then do not show as repeated (with `gt.minimize(..., out=...)` and
  the command line they do, and what had ended is used). In a study without an output folder
  (`grasp_tune.optuna.run`), calls since a killed worker's last sign of life do not show.
- Many processes may share one Optuna study: that is its purpose, so the second is not refused.
- A loss that is not deterministic (some GPU kernels) comes out differently when it is repeated. A
  repeated task whose outcome differs is reported in the log.
- A process killed with SIGKILL cannot remove its temporary folder (runs without `out`).
- The data are not part of the state: resuming with other data in the same folder is not noticed
  unless the start point differs.
"""


def page_text(rows: Sequence[Row]) -> str:
    """Return the whole page."""
    head = ("fault", "body", "outcome", "calls", "repeated")
    body = [
        tuple(_cell(item) for item in (r.fault, r.body, r.outcome, r.calls, r.repeated))
        for r in rows
    ]
    return _HEAD + "\n".join(markdown_table(head, body)) + "\n" + _TAIL


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
