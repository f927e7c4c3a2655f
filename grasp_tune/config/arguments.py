"""What an experiment says to `minimize` about the search: needs no torch, no data and no model."""

from __future__ import annotations

from typing import Any

from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.schema import Experiment
from grasp_tune.config.section import is_entry_point
from grasp_tune.core.methods import Method, method_from_dict


def build_method(experiment: Experiment) -> Method:
    """The variant with the experiment's inputs."""
    values: dict[str, Any] = experiment.method.model_dump()
    base = own_or_name(values["base"], "method.base")
    return method_from_dict(values, base=base) if callable(base) else method_from_dict(values)


def sweep_arguments(experiment: Experiment) -> dict[str, Any]:
    """The arguments of `minimize` that decide the result, from an experiment."""
    functions = {name: own_or_name(name, "challengers") for name in experiment.challengers}
    return {
        "budget": experiment.budget,
        "method": build_method(experiment),
        "schedule": experiment.given_schedule,
        "seed": experiment.seed,
        "ensemble": experiment.ensemble,
        "challengers": {k: v if callable(v) else None for k, v in functions.items()},
        "fused": getattr(experiment.backend, "fused", "auto"),  # only `local` has a say
    }


def backend_of(experiment: Experiment) -> Any:
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


def own_or_name(name: str | None, key: str) -> Any:
    """The function that `module:function` stands for; every other name as it is."""
    return load_entry_point(str(name), key) if is_entry_point(name) else name
