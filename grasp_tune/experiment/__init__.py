"""Experiments described in YAML: read and checked here, built and run by the modules beside.

Reading and checking a config loads no torch; `build_problem` does, when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from grasp_tune.experiment.errors import (
    ConfigError,
    DataError,
    EntryPointError,
    MissingDataError,
)
from grasp_tune.experiment.loader import experiment_from, load_experiment
from grasp_tune.experiment.schema import Experiment
from grasp_tune.experiment.starter import starter

if TYPE_CHECKING:
    from grasp_tune.experiment.build import Built, build_method, build_parts, build_problem
    from grasp_tune.experiment.datasets.data import Data, DataSpec
    from grasp_tune.experiment.outlook import Outlook, look_ahead
    from grasp_tune.experiment.run import Finished, load_model, load_run, run_experiment

__all__ = [
    "Built",
    "ConfigError",
    "Data",
    "DataError",
    "DataSpec",
    "EntryPointError",
    "Experiment",
    "Finished",
    "MissingDataError",
    "Outlook",
    "build_method",
    "build_parts",
    "build_problem",
    "experiment_from",
    "load_experiment",
    "load_model",
    "load_run",
    "look_ahead",
    "run_experiment",
    "starter",
]

_HOME = {
    "Built": "build",
    "build_method": "build",
    "build_parts": "build",
    "build_problem": "build",
    "Data": "datasets.data",
    "DataSpec": "datasets.data",
    "Finished": "run",
    "Outlook": "outlook",
    "load_model": "run",
    "load_run": "run",
    "look_ahead": "outlook",
    "run_experiment": "run",
}


def __getattr__(name: str) -> object:
    """A name from a module that needs torch, loaded at its first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
