"""`minimize`: one call from a problem and a budget to a trained model."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.spec import EnsembleName, ScheduleName, SweepSpec
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.optimizers.registry import Factory
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
    budget: int,
    method: Method | None = None,
    schedule: ScheduleName = "promote",
    seed: int = 0,
    backend: str | Backend = "local",
    fused: bool | Literal["auto"] = "auto",
    progress: bool = True,
    out: Path | str | None = None,
    *,
    workers: int | None = None,
    ensemble: EnsembleName = "resample",
    challengers: Mapping[str, Callable[..., object]] | tuple[str, ...] = (),
    probe_parts: int = 1,
) -> Result:
    """Return the model that a sweep of at most `budget` oracle calls finds, and how it was found.

    problem: the model, the loss and the data; see `TorchProblem`.
    budget: T, the oracle calls (minibatch gradients or losses) allowed in all.
    method: `NonConvex()` by default; `Convex`, `ConvexFree` or `Deterministic`.
    schedule: `promote` spends most calls on the leaders; `paper` is the paper's to the letter.
    seed: fixes everything: start point, minibatches, candidates.
    backend: `local`, `ray`, `optuna`, or an object with a `run` method.
    fused: advance the runs of a small model as one batched computation; `auto` decides by the
        model's shape, the same way in every process.
    out: a folder for checkpoints, state and `result.json`; the same folder again resumes.
    workers: tasks at the same time; by default one, and with Ray as many as the cluster holds.
    ensemble: `resample` scores candidates on fresh samples; `window` by the last minibatches.
    challengers: further base optimizers that join the race, by name or as functions.
    """
    if not isinstance(problem, TorchProblem):
        kind = type(problem).__name__
        raise InputError(f"problem: got {kind}, expected a grasp_tune.TorchProblem")
    if workers is not None and (not isinstance(workers, int) or workers < 1 or workers is True):
        raise InputError(f"workers: got {workers!r}, expected a whole number >= 1")
    if backend not in BACKENDS and (isinstance(backend, str) or not hasattr(backend, "run")):
        raise InputError(
            f"backend: got {backend!r}, expected 'local', 'ray', 'optuna' or an object with `run`"
        )
    spec, bases = SweepSpec.assemble(
        method,
        budget,
        schedule,
        seed,
        ensemble=ensemble,
        width=fusion_width(problem, method, schedule, fused, seed),
        probe_parts=probe_parts,
        challengers=challengers,
    )
    folder = None if out is None else Path(out)
    if not isinstance(backend, str):
        return backend.run(problem, spec, out=folder, bases=bases, progress=progress)
    if backend == "local":
        return run_local(problem, spec, folder, bases, workers or 1, progress=progress)
    if backend == "ray":
        from grasp_tune.ray import run_ray

        return run_ray(problem, spec, out=folder, workers=workers, bases=bases, progress=progress)
    from grasp_tune.optuna import run_optuna

    return run_optuna(
        problem, spec, out=folder, workers=workers or 1, bases=bases, progress=progress
    )


def run_local(
    problem: TorchProblem,
    spec: SweepSpec,
    out: Path | None,
    bases: Mapping[str, Factory],
    workers: int,
    *,
    progress: bool,
) -> Result:
    """Return the result of a sweep in this process, or over a few worker processes."""
    from grasp_tune.executors.local import InProcess
    from grasp_tune.executors.process_pool import ProcessPool
    from grasp_tune.runtime.driver import run_sweep
    from grasp_tune.runtime.progress import reporter_for

    executor = InProcess if workers == 1 else partial(ProcessPool, workers)
    reporter = reporter_for(progress)
    return run_sweep(
        problem, spec, executor, out=out, shared=workers > 1, bases=bases, reporter=reporter
    )
