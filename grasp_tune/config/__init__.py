"""Experiments described in YAML: read and checked here, built and run by the modules beside.

Reading and checking a config loads no torch; running it does.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.config.errors import ConfigError
    from grasp_tune.config.loader import experiment_from, load_experiment
    from grasp_tune.config.run import load_run, run_experiment
    from grasp_tune.report.cost_estimate import estimate_cost

__all__ = [
    "ConfigError",
    "estimate_cost",
    "experiment_from",
    "load_experiment",
    "load_run",
    "run_experiment",
]
_HOMES = {"ConfigError": "errors", "load_run": "run", "run_experiment": "run"}
__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{_HOMES.get(name, 'loader')}" for name in __all__}
    | {"estimate_cost": "grasp_tune.report.cost_estimate"},
)
