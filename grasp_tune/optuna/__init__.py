"""The Optuna body: the plan as a sampler, and the whole method as trials of one study.

Names are loaded when first used: sampling a plan needs neither torch nor the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grasp_tune.executors.study import Timing
    from grasp_tune.optuna.budget import Budget, grasp_budget
    from grasp_tune.optuna.figures import loss_figure, rung_figure, save_figures
    from grasp_tune.optuna.runner import OptunaBackend, run, run_optuna
    from grasp_tune.optuna.sampler import GraspSampler
    from grasp_tune.optuna.selection import select

__all__ = [
    "Budget",
    "GraspSampler",
    "OptunaBackend",
    "Timing",
    "grasp_budget",
    "loss_figure",
    "run",
    "run_optuna",
    "rung_figure",
    "save_figures",
    "select",
]

_HOME = {
    "Budget": "budget",
    "GraspSampler": "sampler",
    "OptunaBackend": "runner",
    "Timing": "runner",
    "grasp_budget": "budget",
    "loss_figure": "figures",
    "run": "runner",
    "run_optuna": "runner",
    "rung_figure": "figures",
    "save_figures": "figures",
    "select": "selection",
}


def __getattr__(name: str) -> object:
    """The public name `name`, from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'grasp_tune.optuna' has no attribute {name!r}")
    value = getattr(import_module(f"grasp_tune.optuna.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names, loaded or not, beside what is already there."""
    return sorted({*globals(), *__all__})
