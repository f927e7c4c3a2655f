"""The Optuna body: the plan as a sampler, and the whole method as trials of one study."""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.executors.optuna_backend import OptunaBackend, run
    from grasp_tune.executors.study import Timing
    from grasp_tune.optuna.budget import Budget, grasp_budget
    from grasp_tune.optuna.figures import loss_figure, rung_figure, save_figures
    from grasp_tune.optuna.objective import TaskSampler, optimizer, train
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

_NAMES = {
    "executors.study": "Timing",
    "optuna.budget": "Budget grasp_budget",
    "optuna.figures": "loss_figure rung_figure save_figures",
    "optuna.objective": "TaskSampler optimizer train",
    "executors.optuna_backend": "OptunaBackend run",
    "optuna.sampler": "GraspSampler",
    "optuna.selection": "select",
}
_HOME = {name: f"grasp_tune.{home}" for home, names in _NAMES.items() for name in names.split()}
__getattr__, __dir__ = lazy_names(__name__, _HOME, "optuna")
