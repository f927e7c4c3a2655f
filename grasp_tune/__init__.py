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
_HOME = {
    "BudgetTooSmall": "grasp_tune.core.errors",
    "Cell": "grasp_tune.core.plan",
    "CheckpointError": "grasp_tune.core.errors",
    "Convex": "grasp_tune.core.methods",
    "ConvexFree": "grasp_tune.core.methods",
    "Deterministic": "grasp_tune.core.methods",
    "Grasp": "grasp_tune.loop.grasp",
    "GraspError": "grasp_tune.core.errors",
    "InputError": "grasp_tune.core.errors",
    "LockedError": "grasp_tune.core.errors",
    "MissingExtra": "grasp_tune.core.errors",
    "NonConvex": "grasp_tune.core.methods",
    "Paper": "grasp_tune.schedules.paper",
    "Plan": "grasp_tune.core.plan",
    "PlanError": "grasp_tune.core.errors",
    "ProblemError": "grasp_tune.core.errors",
    "Promote": "grasp_tune.schedules.promote",
    "Result": "grasp_tune.runtime.result",
    "Search": "grasp_tune.core.search",
    "SearchError": "grasp_tune.core.errors",
    "TorchProblem": "grasp_tune.engine.problem",
    "UniXGrad": "grasp_tune.optimizers.unixgrad",
    "minimize": "grasp_tune.api",
    "self_bound": "grasp_tune.core.bounds",
}


__getattr__, __dir__ = lazy_names(__name__, _HOME)
