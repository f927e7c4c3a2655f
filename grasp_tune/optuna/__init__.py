"""grasp_tune with Optuna: step sizes from a sampler, or the whole method as trials of a study."""

from typing import TYPE_CHECKING

from grasp_tune.extras import lazy_names

if TYPE_CHECKING:
    from grasp_tune.executors.optuna import OptunaBackend as OptunaBackend
    from grasp_tune.executors.optuna import run as run
    from grasp_tune.executors.study import Timing as Timing
    from grasp_tune.optuna.figures import loss_figure as loss_figure
    from grasp_tune.optuna.figures import rung_figure as rung_figure
    from grasp_tune.optuna.figures import save_figures as save_figures
    from grasp_tune.optuna.objective import TaskSampler as TaskSampler
    from grasp_tune.optuna.objective import optimizer as optimizer
    from grasp_tune.optuna.objective import train as train
    from grasp_tune.optuna.sampler import Budget as Budget
    from grasp_tune.optuna.sampler import GraspSampler as GraspSampler
    from grasp_tune.optuna.sampler import grasp_budget as grasp_budget
    from grasp_tune.optuna.sampler import select as select

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__, "optuna")
