"""The GRASP sampler for OptunaHub; the code is in the package grasp_tune."""

from .sampler import grasp_budget
from .sampler import GraspSampler


__all__ = ["GraspSampler", "grasp_budget"]
