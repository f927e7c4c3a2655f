"""Parameter-free stochastic optimization by grid search with self-bounding analysis.

The public names are loaded when they are first used, so that `import grasp_tune` costs
milliseconds and loads neither torch nor Ray nor Optuna: planning needs none of them.
"""

from typing import TYPE_CHECKING

from grasp_tune.extras import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:  # read by type checkers, editors and `lazy_names`
    from grasp_tune.api import minimize as minimize
    from grasp_tune.core.bounds import self_bound as self_bound
    from grasp_tune.core.errors import BudgetTooSmall as BudgetTooSmall
    from grasp_tune.core.errors import CheckpointError as CheckpointError
    from grasp_tune.core.errors import GraspError as GraspError
    from grasp_tune.core.errors import InputError as InputError
    from grasp_tune.core.errors import LockedError as LockedError
    from grasp_tune.core.errors import MissingExtra as MissingExtra
    from grasp_tune.core.errors import PlanError as PlanError
    from grasp_tune.core.errors import ProblemError as ProblemError
    from grasp_tune.core.errors import SearchError as SearchError
    from grasp_tune.core.methods import Convex as Convex
    from grasp_tune.core.methods import ConvexFree as ConvexFree
    from grasp_tune.core.methods import Deterministic as Deterministic
    from grasp_tune.core.methods import NonConvex as NonConvex
    from grasp_tune.core.plan import Cell as Cell
    from grasp_tune.core.plan import Plan as Plan
    from grasp_tune.core.search import Search as Search
    from grasp_tune.engine.problem import TorchProblem as TorchProblem
    from grasp_tune.loop.grasp import Grasp as Grasp
    from grasp_tune.optimizers.unixgrad import UniXGrad as UniXGrad
    from grasp_tune.runtime.result import Result as Result
    from grasp_tune.schedules.paper import Paper as Paper
    from grasp_tune.schedules.promote import Promote as Promote

# No public name may equal a submodule's, which would replace it: hence `minimize` is in `api`.
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
