"""The Ray Tune body: the search as a Tune searcher, its tasks as trials, on one machine or many."""

from grasp_tune.executors.ray import RayBackend
from grasp_tune.ray.experiment import load_result, quiet_disk
from grasp_tune.ray.plan_searcher import BudgetStopper, PlanSearcher
from grasp_tune.ray.progress import GraspProgress
from grasp_tune.ray.searcher import GraspSearcher
from grasp_tune.ray.trainable import grasp_trainable

__all__ = [
    "BudgetStopper",
    "GraspProgress",
    "GraspSearcher",
    "PlanSearcher",
    "RayBackend",
    "grasp_trainable",
    "load_result",
    "quiet_disk",
]
