"""Parameter-free stochastic optimization by grid search with self-bounding analysis.

The public names are loaded when they are first used, so that `import grasp_tune` costs
milliseconds and loads neither torch nor Ray nor Optuna: planning needs none of them.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:  # what the table below says, in words that type checkers and editors read
    from grasp_tune.api import minimize
    from grasp_tune.core.bounds import self_bound
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
    from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, NonConvex
    from grasp_tune.core.plan import Cell, Plan
    from grasp_tune.core.search import Search
    from grasp_tune.engine.problem import TorchProblem
    from grasp_tune.loop.grasp import Grasp
    from grasp_tune.optimizers.unixgrad import UniXGrad
    from grasp_tune.runtime.result import Result
    from grasp_tune.schedules.paper import Paper
    from grasp_tune.schedules.promote import Promote

__all__ = [
    "BudgetTooSmall",
    "Cell",
    "CheckpointError",
    "Convex",
    "ConvexFree",
    "Deterministic",
    "Grasp",
    "GraspError",
    "InputError",
    "LockedError",
    "MissingExtra",
    "NonConvex",
    "Paper",
    "Plan",
    "PlanError",
    "ProblemError",
    "Promote",
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
# `minimize` lives in `api`.
_HOMES = {
    "api": "minimize",
    "core.bounds": "self_bound",
    "core.errors": "BudgetTooSmall CheckpointError GraspError InputError LockedError MissingExtra"
    " PlanError ProblemError SearchError",
    "core.methods": "Convex ConvexFree Deterministic NonConvex",
    "core.plan": "Cell Plan",
    "core.search": "Search",
    "engine.problem": "TorchProblem",
    "loop.grasp": "Grasp",
    "optimizers.unixgrad": "UniXGrad",
    "runtime.result": "Result",
    "schedules.paper": "Paper",
    "schedules.promote": "Promote",
}
_HOME = {name: f"grasp_tune.{home}" for home, names in _HOMES.items() for name in names.split()}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
