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
    """An object that runs a sweep, to pass as `backend` instead of `local`, `ray` or `optuna`."""

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
    """Return the result of a sweep: the trained model, how it was chosen, and what it cost.

    At least one of `budget`, `steps`, `epochs` and `minutes` is required. If several are given, the
    smallest counts.

    problem: the model, the loss and the data; see `TorchProblem`.
    budget: T, the total number of oracle calls (minibatch gradients or losses).
    method: `NonConvex()` by default; or `Convex`, `ConvexFree`, `Deterministic`.
    schedule: `promote` spends most calls on the best runs. `paper` is the paper's algorithm to the
        letter, except that with validation data their loss decides; see `Paper`.
    seed: fixes everything: start point, minibatches, candidates.
    backend: `local`, `ray`, `optuna`, or an object with a `run` method.
    fused: let short runs of a small model share a task; the result is the same. `auto` decides by
        the model's shape, in the same way in every process.
    progress: show a progress bar on a terminal, and log lines elsewhere.
    out: a folder for checkpoints, state and `result.json`. The same folder resumes the sweep, and
        with a larger budget continues a finished one.
    workers: the number of parallel tasks; by default one, with Ray as many as fit on the cluster.
    ensemble: `resample` scores candidates on fresh samples, `window` by their last minibatches.
    challengers: further base optimizers that join the race, by name or as functions.
    probe_parts: the number of tasks that share the probe; the default depends on its length.
    steps: as many oracle calls as one plain training makes in this many steps.
    epochs: as many oracle calls as one plain training makes in this many passes over the rows.
    minutes: a time limit. On its own it is turned into oracle calls by timing a few gradients. The
        backend `local` stops when the time is up and returns the best point so far; if the calls
        end before that, `promote` trains the chosen point further in the rest of the time.
    strict: raise `SearchError` if a task is lost for good, instead of adding to `result.notes`.
    hard_cap: count calls repeated after a fault towards the budget too, also those of earlier calls
        with the same `out`. If the budget runs out, the best point so far is returned.
    callbacks: objects that follow the sweep; see `Callback` and `grasp_tune.report.loggers`.
    """
    began = time.monotonic()
    checked_problem(problem)
    if workers is not None:
        whole("workers", workers)
    known = backend in BACKENDS or (not isinstance(backend, str) and hasattr(backend, "run"))
    expect(known, "backend", repr(backend), "'local', 'ray', 'optuna' or an object with `run`")
    if hard_cap and backend not in BACKENDS:
        raise InputError("hard_cap: it goes with the names of backends; give it to the object")
    path = out is None or (isinstance(out, str | Path) and str(out).strip())
    expect(bool(path) and "\0" not in str(out), "out", repr(out), "the path of a folder")
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

        with calls.told():
            result = run_sweep(
                problem,
                spec,
                partial(ProcessPool, workers) if workers and workers > 1 else InProcess,
                out=folder,
                bases=bases,
                progress=reporter,
                # The time for loading modules and timing gradients counts, too.
                minutes=None if minutes is None else minutes - (time.monotonic() - began) / 60,
                prolong=calls.unit == "minutes",
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
        shown = reporter if callbacks else progress  # backends pass it to `reporter_for`
        with calls.told():
            result = body.run(problem, spec, out=folder, bases=bases, progress=shown)
    if callbacks:
        reporter.finish(result)
    if strict and result.lost:
        raise SearchError(f"strict: the sweep ended, but not as planned; {'; '.join(result.lost)}")
    return result
