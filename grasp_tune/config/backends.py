"""From an experiment to the arguments of `minimize`: what decides the result, and who runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from grasp_tune.api import Backend
from grasp_tune.config.backend_options import Local
from grasp_tune.config.build import build_method
from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.schema import Experiment
from grasp_tune.config.section import is_entry_point


def sweep_arguments(experiment: Experiment) -> dict[str, Any]:
    """The arguments of `minimize` that decide the result, from an experiment."""
    return {
        "budget": experiment.budget,
        "method": build_method(experiment),
        "schedule": experiment.given_schedule,
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
    values = experiment.backend.model_dump(exclude={"kind"})
    if experiment.backend.kind == "ray":
        from grasp_tune.executors.ray import RayBackend

        return RayBackend(**values)
    if experiment.backend.kind == "optuna":
        from grasp_tune.optuna import OptunaBackend

        del values["gpus_per_task"]  # a check of the config only: a study's processes share
        return OptunaBackend(**values)
    return "local"
