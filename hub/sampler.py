"""The sampler, from the package that this entry depends on."""

from grasp_tune.optuna import GraspSampler, grasp_budget

__all__ = ["GraspSampler", "grasp_budget"]
