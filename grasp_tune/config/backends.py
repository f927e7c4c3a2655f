"""From the `backend` section of a config to whoever runs the sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from grasp_tune.api import Backend
from grasp_tune.config.backend_options import Local, Optuna, Ray
from grasp_tune.config.build import build_method
from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.schema import Experiment
from grasp_tune.config.section import is_entry_point
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.runtime.result import Result


def sweep_arguments(experiment: Experiment) -> dict[str, Any]:
    """The arguments of `minimize` that decide the result, from an experiment."""
    return {
        "budget": experiment.budget,
        "method": build_method(experiment),
        "schedule": experiment.schedule,
        "seed": experiment.seed,
        "ensemble": experiment.ensemble,
        "challengers": challengers_of(experiment),
        "fused": fused_of(experiment),
    }


def fused_of(experiment: Experiment) -> bool | Literal["auto"]:
    """Whether runs are batched into one computation; only the local backend has a say."""
    return experiment.backend.fused if isinstance(experiment.backend, Local) else "auto"


def challengers_of(experiment: Experiment) -> dict[str, Callable[..., object] | None]:
    """The challengers by name; those of the user's own with their function."""
    return {
        name: load_entry_point(name, "challengers") if is_entry_point(name) else None
        for name in experiment.challengers
    }


def backend_of(experiment: Experiment) -> str | Backend:
    """The backend that a config asks for, as `minimize` takes it."""
    options = experiment.backend
    if isinstance(options, Ray):
        from grasp_tune.ray import RayBackend

        return RayBackend(
            address=options.address,
            workers=options.workers,
            cpus_per_task=options.cpus_per_task,
            gpus_per_task=options.gpus_per_task,
            storage=options.storage,
            max_failures=options.max_failures,
        )
    if isinstance(options, Optuna):
        from grasp_tune.optuna import OptunaBackend

        return OptunaBackend(storage=options.storage, study=options.study, workers=options.workers)
    return "local"


def sweep(experiment: Experiment, problem: TorchProblem, out: Any, *, progress: bool) -> Result:
    """Run the whole sweep of an experiment and return its result."""
    from grasp_tune.api import minimize

    options = experiment.backend
    workers = options.workers if isinstance(options, Local) else None
    if isinstance(options, Local) and options.threads is not None:
        torch.set_num_threads(options.threads)
    return minimize(
        problem,
        backend=backend_of(experiment),
        workers=workers,
        progress=progress,
        out=out,
        **sweep_arguments(experiment),
    )
