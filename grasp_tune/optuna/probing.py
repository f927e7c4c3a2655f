"""From a problem to a plan: the probe at x0, in this process."""

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method, NonConvex
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.optuna.plans import StoredPlan
from grasp_tune.runtime.store import MemoryStore

_NAMES = {"step size": "lr", "radius": "radius"}


def probed_plan(
    problem: TorchProblem, budget: int, method: Method | None, parameter: str | None, seed: int
) -> StoredPlan:
    """Return the paper's plan for the problem, made from the probe that the paper asks for."""
    if not isinstance(problem, TorchProblem):
        kind = type(problem).__name__
        raise InputError(f"problem: got {kind}, expected a grasp_tune.TorchProblem")
    method = NonConvex() if method is None else method
    search = Search(SweepSpec(method=method, budget=budget, schedule="paper", seed=seed))
    worker = Worker(problem, seed, MemoryStore())
    outcome = None
    for task in search.round_tasks:
        if not isinstance(task, ProbeTask):
            raise SearchError(f"a sweep begins with a probe, got {task.id}")
        outcome = worker.run(task)
        search.tell(task, outcome)
    if search.plan is None or search.plan.stationary:
        raise SearchError(
            "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary and "
            "there is nothing to search"
        )
    assert isinstance(outcome, ProbeOutcome)
    name = parameter or _NAMES[search.plan.quantity]
    return StoredPlan(search.plan, name, seed, outcome)
