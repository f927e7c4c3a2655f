"""The Optuna body: the plan as a sampler, and the whole method as trials of one study.

Names are loaded when first used: sampling a plan needs neither torch nor the rest.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.executors.study import Timing
    from grasp_tune.optuna.budget import Budget, grasp_budget
    from grasp_tune.optuna.figures import loss_figure, rung_figure, save_figures
    from grasp_tune.optuna.objective import TaskSampler, optimizer, train
    from grasp_tune.optuna.runner import OptunaBackend, run
    from grasp_tune.optuna.sampler import GraspSampler
    from grasp_tune.optuna.selection import select

__all__ = [
    "Budget",
    "GraspSampler",
    "OptunaBackend",
    "TaskSampler",
    "Timing",
    "grasp_budget",
    "loss_figure",
    "optimizer",
    "run",
    "rung_figure",
    "save_figures",
    "select",
    "train",
]

_HOME = {
    "Budget": "grasp_tune.optuna.budget",
    "GraspSampler": "grasp_tune.optuna.sampler",
    "OptunaBackend": "grasp_tune.optuna.runner",
    "TaskSampler": "grasp_tune.optuna.objective",
    "Timing": "grasp_tune.executors.study",
    "grasp_budget": "grasp_tune.optuna.budget",
    "loss_figure": "grasp_tune.optuna.figures",
    "optimizer": "grasp_tune.optuna.objective",
    "run": "grasp_tune.optuna.runner",
    "rung_figure": "grasp_tune.optuna.figures",
    "save_figures": "grasp_tune.optuna.figures",
    "select": "grasp_tune.optuna.selection",
    "train": "grasp_tune.optuna.objective",
}
__getattr__, __dir__ = lazy_names(__name__, _HOME, "optuna")
