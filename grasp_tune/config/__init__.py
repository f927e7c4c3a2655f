"""Experiments described in YAML. Reading and checking one loads no torch; running it does."""

from typing import TYPE_CHECKING

from grasp_tune.extras import lazy_names

if TYPE_CHECKING:
    from grasp_tune.config.errors import ConfigError as ConfigError
    from grasp_tune.config.loader import experiment_from as experiment_from
    from grasp_tune.config.loader import load_experiment as load_experiment
    from grasp_tune.config.run import load_run as load_run
    from grasp_tune.config.run import run_experiment as run_experiment
    from grasp_tune.report.cost_estimate import estimate_cost as estimate_cost

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
