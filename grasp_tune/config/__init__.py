"""Experiments described in YAML: read and checked here, built and run by the modules beside.

Reading and checking a config loads no torch; `build_problem` does, when first used.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.config.arguments import build_method
    from grasp_tune.config.build import Built, build_parts, build_problem
    from grasp_tune.config.errors import ConfigError, DataError, EntryPointError, MissingDataError
    from grasp_tune.config.loader import experiment_from, load_experiment, starter
    from grasp_tune.config.run import Finished, load_model, load_run, run_experiment
    from grasp_tune.config.schema import Experiment
    from grasp_tune.data.data import Data, DataSpec
    from grasp_tune.report.cost_estimate import CostEstimate, estimate_cost

_HOME = {
    "config.arguments": ("build_method",),
    "config.build": ("Built", "build_parts", "build_problem"),
    "config.errors": ("ConfigError", "DataError", "EntryPointError", "MissingDataError"),
    "config.loader": ("experiment_from", "load_experiment", "starter"),
    "config.run": ("Finished", "load_model", "load_run", "run_experiment"),
    "config.schema": ("Experiment",),
    "data.data": ("Data", "DataSpec"),
    "report.cost_estimate": ("CostEstimate", "estimate_cost"),
}
__all__ = [
    "Built",
    "ConfigError",
    "CostEstimate",
    "Data",
    "DataError",
    "DataSpec",
    "EntryPointError",
    "Experiment",
    "Finished",
    "MissingDataError",
    "build_method",
    "build_parts",
    "build_problem",
    "estimate_cost",
    "experiment_from",
    "load_experiment",
    "load_model",
    "load_run",
    "run_experiment",
    "starter",
]
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"grasp_tune.{home}" for home, names in _HOME.items() for name in names}
)
