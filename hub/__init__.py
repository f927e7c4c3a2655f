"""The GRASP sampler for OptunaHub; the code is in the package grasp_tune."""

from .sampler import GraspSampler, grasp_budget

__all__ = ["GraspSampler", "grasp_budget"]
