"""The method: numbers only. Nothing here loads torch, Ray or Optuna."""

from grasp_tune.core.bounds import geometric_count, geometric_grid, self_bound
from grasp_tune.core.certificate import (
    Bound,
    Certificate,
    gradient_choice,
    value_choice,
    value_choice_interpolation,
)
from grasp_tune.core.errors import (
    BudgetTooSmall,
    CheckpointError,
    GraspError,
    InputError,
    LockedError,
    MissingExtra,
    PlanError,
    ProblemError,
    SearchError,
)
from grasp_tune.core.methods import (
    METHODS,
    Convex,
    ConvexFree,
    Deterministic,
    Method,
    NonConvex,
    method_from_dict,
)
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import (
    IndexStream,
    address,
    generator,
    indices,
    trajectory_indices,
)

__all__ = [
    "METHODS",
    "Bound",
    "BudgetTooSmall",
    "Cell",
    "Certificate",
    "CheckpointError",
    "Convex",
    "ConvexFree",
    "Deterministic",
    "GraspError",
    "IndexStream",
    "InputError",
    "LockedError",
    "Method",
    "MissingExtra",
    "NonConvex",
    "Plan",
    "PlanError",
    "ProblemError",
    "SearchError",
    "address",
    "generator",
    "geometric_count",
    "geometric_grid",
    "gradient_choice",
    "indices",
    "method_from_dict",
    "self_bound",
    "trajectory_indices",
    "value_choice",
    "value_choice_interpolation",
]
