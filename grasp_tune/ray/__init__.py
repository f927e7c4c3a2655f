"""The Ray Tune body: the search as a Tune searcher, its tasks as trials, on one machine or many."""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.executors.ray import RayBackend
    from grasp_tune.ray.experiment import GraspProgress, load_result, quiet_disk
    from grasp_tune.ray.plan_searcher import BudgetStopper, PlanSearcher
    from grasp_tune.ray.searcher import GraspSearcher
    from grasp_tune.ray.trainable import grasp_trainable
    from grasp_tune.ray.trial import optimizer, train

__all__ = [
    "BudgetStopper",
    "GraspProgress",
    "GraspSearcher",
    "PlanSearcher",
    "RayBackend",
    "grasp_trainable",
    "load_result",
    "optimizer",
    "quiet_disk",
    "train",
]

_HOME = {
    "BudgetStopper": "grasp_tune.ray.plan_searcher",
    "GraspProgress": "grasp_tune.ray.experiment",
    "GraspSearcher": "grasp_tune.ray.searcher",
    "PlanSearcher": "grasp_tune.ray.plan_searcher",
    "RayBackend": "grasp_tune.executors.ray",
    "grasp_trainable": "grasp_tune.ray.trainable",
    "load_result": "grasp_tune.ray.experiment",
    "optimizer": "grasp_tune.ray.trial",
    "quiet_disk": "grasp_tune.ray.experiment",
    "train": "grasp_tune.ray.trial",
}
__getattr__, __dir__ = lazy_names(__name__, _HOME, "ray")
