"""`minimize`: one call from a problem and a budget to a trained model."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from grasp_tune.core.errors import InputError, SearchError, expect, whole
from grasp_tune.core.methods import Method
from grasp_tune.core.spec import AnySchedule, EnsembleName, SweepSpec
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.limits import Limits
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.callbacks import Callback, reporter_for
from grasp_tune.runtime.result import Result

BACKENDS = ("local", "ray", "optuna")


class Backend(Protocol):
    """Whoever can run a sweep: an object of one's own in place of `local`, `ray` or `optuna`."""

    def run(
        self,
        problem: TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None,
        bases: Mapping[str, Factory],
        progress: bool,
    ) -> Result:
        """Return the result of the sweep that `spec` describes."""


def minimize(
    problem: TorchProblem,
    budget: int | None = None,
    method: Method | None = None,
    schedule: AnySchedule = "promote",
    seed: int = 0,
    backend: str | Backend = "local",
    fused: bool | Literal["auto"] = "auto",
    progress: bool = True,
    out: Path | str | None = None,
    *,
    workers: int | None = None,
    ensemble: EnsembleName = "resample",
    challengers: Mapping[str, Callable[..., object]] | tuple[str, ...] = (),
    probe_parts: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    strict: bool = False,
    hard_cap: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Return the model that a sweep of at most `budget` oracle calls finds, and how it was found.

    How long it may take is given by at least one of `budget`, `steps`, `epochs` and `minutes`; the
    smallest counts.

    problem: the model, the loss and the data; see `TorchProblem`.
    budget: T, the oracle calls (minibatch gradients or losses) allowed in all.
    method: `NonConvex()` by default; `Convex`, `ConvexFree` or `Deterministic`.
    schedule: `promote` spends most calls on the leaders; `paper` is the paper's to the letter, save
        that validation data, where given, decide by their loss; see `Paper`.
    seed: fixes everything: start point, minibatches, candidates.
    backend: `local`, `ray`, `optuna`, or an object with a `run` method.
    fused: let short runs of a small model share a task, with the same result; `auto` decides by
        the model's shape, the same way in every process.
    progress: show a bar on a terminal, lines elsewhere.
    out: a folder for checkpoints, state and `result.json`; the same folder again resumes, and with
        a larger budget extends what has ended there.
    workers: tasks at the same time; by default one, and with Ray as many as the cluster holds.
    ensemble: `resample` scores candidates on fresh samples; `window` by the last minibatches.
    challengers: further base optimizers that join the race, by name or as functions.
    probe_parts: tasks that share the probe; by default as many as its length makes worthwhile.
    steps: as many oracle calls as one plain training of so many steps makes.
    epochs: as many oracle calls as one plain training makes in so many passes over the rows.
    minutes: of the clock. Alone it is turned into calls by timing a few gradients. The backend
        `local` stops when they are over, and returns the best point so far.
    strict: raise `SearchError` where a task was lost for good, instead of a line in `result.notes`.
    hard_cap: the budget also holds for work that a fault has undone, in this call or an earlier one
        with the same `out`; where it is used up, the best point so far is returned.
    callbacks: hear how the sweep goes; see `Callback`, and `grasp_tune.report.loggers`.
    """
    began = time.monotonic()
    checked_problem(problem)
    if workers is not None:
        whole("workers", workers)
    known = backend in BACKENDS or (not isinstance(backend, str) and hasattr(backend, "run"))
    expect(known, "backend", repr(backend), "'local', 'ray', 'optuna' or an object with `run`")
    if hard_cap and backend not in BACKENDS:
        raise InputError("hard_cap: it goes with the names of backends; give it to the object")
    if out is not None and (
        not isinstance(out, str | Path) or not str(out).strip() or "\0" in str(out)
    ):
        raise InputError(f"out: got {out!r}, expected the path of a folder")
    folder = None if out is None else Path(out).absolute()  # a loss may change the directory
    limits, exact = Limits(budget, steps, epochs, minutes), getattr(method, "exact", False)
    calls = limits.calls(problem, seed, folder, exact=exact)
    spec, bases = SweepSpec.assemble(
        method, calls, schedule, seed, ensemble, fused, probe_parts, challengers
    )
    reporter = reporter_for(progress, callbacks)
    if backend == "local":
        from grasp_tune.executors.local import InProcess, ProcessPool
        from grasp_tune.runtime.driver import run_sweep

        result = run_sweep(
            problem,
            spec,
            partial(ProcessPool, workers) if workers and workers > 1 else InProcess,
            out=folder,
            bases=bases,
            progress=reporter,
            # Timing and loading what the sweep needs belong to the minutes, too.
            minutes=None if minutes is None else minutes - (time.monotonic() - began) / 60,
            hard_cap=hard_cap,
        )
    else:
        body: Any = backend
        if backend == "ray":
            from grasp_tune.executors.ray import RayBackend

            body = RayBackend(workers=workers, hard_cap=hard_cap)
        elif backend == "optuna":
            from grasp_tune.optuna import OptunaBackend

            body = OptunaBackend(workers=workers or 1, hard_cap=hard_cap)
        shown = reporter if callbacks else progress  # bodies hand it on to `reporter_for`
        result = body.run(problem, spec, out=folder, bases=bases, progress=shown)
    if callbacks:
        reporter.finish(result)
    if strict and result.lost:
        raise SearchError(f"strict: the sweep ended, but not as planned; {'; '.join(result.lost)}")
    return result
