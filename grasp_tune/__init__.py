"""Parameter-free stochastic optimization by grid search with self-bounding analysis.

The public names are loaded when they are first used, so that `import grasp_tune` costs
milliseconds and loads neither torch nor Ray nor Optuna: planning needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what the table below says, in words that type checkers and editors read
    from grasp_tune.facade import minimize
    from grasp_tune.method.bounds import self_bound
    from grasp_tune.method.errors import (
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
    from grasp_tune.method.plan import Cell, Plan
    from grasp_tune.method.search import Search
    from grasp_tune.method.variants import Convex, ConvexFree, Deterministic, NonConvex
    from grasp_tune.training.problem import TorchProblem
    from grasp_tune.training.result import Result
    from grasp_tune.training.unixgrad import UniXGrad

__all__ = [
    "BudgetTooSmall",
    "Cell",
    "CheckpointError",
    "Convex",
    "ConvexFree",
    "Deterministic",
    "GraspError",
    "InputError",
    "LockedError",
    "MissingExtra",
    "NonConvex",
    "Plan",
    "PlanError",
    "ProblemError",
    "Result",
    "Search",
    "SearchError",
    "TorchProblem",
    "UniXGrad",
    "__version__",
    "minimize",
    "self_bound",
]

# No public name may equal a submodule's: importing the submodule would replace it. Hence
# `minimize` lives in `facade`.
_HOME = {
    "BudgetTooSmall": "grasp_tune.method.errors",
    "Cell": "grasp_tune.method.plan",
    "CheckpointError": "grasp_tune.method.errors",
    "Convex": "grasp_tune.method.variants",
    "ConvexFree": "grasp_tune.method.variants",
    "Deterministic": "grasp_tune.method.variants",
    "GraspError": "grasp_tune.method.errors",
    "InputError": "grasp_tune.method.errors",
    "LockedError": "grasp_tune.method.errors",
    "MissingExtra": "grasp_tune.method.errors",
    "NonConvex": "grasp_tune.method.variants",
    "Plan": "grasp_tune.method.plan",
    "PlanError": "grasp_tune.method.errors",
    "ProblemError": "grasp_tune.method.errors",
    "Result": "grasp_tune.training.result",
    "Search": "grasp_tune.method.search",
    "SearchError": "grasp_tune.method.errors",
    "TorchProblem": "grasp_tune.training.problem",
    "UniXGrad": "grasp_tune.training.unixgrad",
    "minimize": "grasp_tune.facade",
    "self_bound": "grasp_tune.method.bounds",
}


def __getattr__(name: str) -> object:
    """The public name `name`, from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'grasp_tune' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next use finds it without asking here
    return value


def __dir__() -> list[str]:
    """All public names, loaded or not, beside what is already there."""
    return sorted({*globals(), *__all__})
