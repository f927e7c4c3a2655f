"""The sampler, from the package that this entry depends on."""

from grasp_tune.optuna import grasp_budget
from grasp_tune.optuna import GraspSampler


__all__ = ["GraspSampler", "grasp_budget"]
