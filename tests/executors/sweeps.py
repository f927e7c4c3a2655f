"""A small sweep to be killed, stopped, started again and compared."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.spec import AnySchedule
from tests.engine import workbench

BUDGET = 500


def problem(before: Callable[[], None] = lambda: None) -> gt.TorchProblem:
    """A problem whose loss calls `before` first."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        before()
        return workbench.cross_entropy(model, batch)

    return workbench.problem(workbench.dropout, loss)


def sweep(
    out: Path | None,
    given: gt.TorchProblem | None = None,
    schedule: AnySchedule = "promote",
    workers: int = 1,
    budget: int = BUDGET,
) -> gt.Result:
    """The sweep that all of these tests compare."""
    return gt.minimize(
        given or problem(),
        budget,
        # With no base, `promote` would give so small a budget to one run.
        gt.NonConvex(
            L_eps=1.0, F_eps=1.0, delta=0.3, base="adam" if schedule == "promote" else None
        ),
        schedule=schedule,
        seed=3,
        out=out,
        workers=workers,
        fused=False,
        progress=False,
    )


def fingerprint(result: gt.Result) -> str:
    """What must be the same: the model to the bit, the choice, and every score."""
    found = hashlib.blake2b()
    for name, item in sorted(result.tensors.items()):
        found.update(name.encode() + item.numpy().tobytes())
    rows = [(row.key, repr(row.score), row.note) for row in result.candidates]
    spent = {key: value for key, value in result.calls.items() if key != "repeated"}
    found.update(json.dumps([result.choice.key, rows, spent]).encode())
    return found.hexdigest()[:16]


def forked(work: Callable[[], object]) -> int:
    """The id of a process that does the work: exit code 0, 2 if it was interrupted, 1 if not."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except KeyboardInterrupt:
        code = 2
    finally:
        os._exit(code)


def killed_at(call: int, out: Path, schedule: AnySchedule = "promote") -> int:
    """How a process ended that kills itself, without any clean-up, at an oracle call."""
    seen = 0

    def before() -> None:
        nonlocal seen
        seen += 1
        if seen == call:
            os.kill(os.getpid(), signal.SIGKILL)

    process = forked(lambda: sweep(out, problem(before), schedule))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
