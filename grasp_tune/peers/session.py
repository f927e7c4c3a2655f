"""A peer's access to a problem: counted oracle calls, training and the result.

Peers see the same minibatches as the cells of a sweep: call t of a run is the training minibatch
with address t. So all methods are compared on equal terms.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from grasp_tune.core.errors import SearchError, whole
from grasp_tune.engine.checkpoints import Tensors, finite, model_tensors
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.problem import TorchProblem


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The result of one peer with one seed."""

    tensors: Tensors = field(repr=False)  # `param.*` and `buffer.*` of the returned point
    calls: int  # oracle calls used, at most the budget
    seconds: float
    diverged: bool  # the returned point, or a loss of its run, is not finite
    note: str = ""  # what the peer has chosen: a learning rate, a number of trials


class Session:
    """A budget of oracle calls on one problem, shared by all runs of a peer."""

    def __init__(self, problem: TorchProblem, budget: int, seed: int) -> None:
        self.problem, self.budget, self.seed = problem, whole("budget", budget), seed
        self.calls, self.begun = 0, time.perf_counter()

    @property
    def left(self) -> int:
        return self.budget - self.calls

    def run(self) -> "Run":
        return Run(self, Oracle(self.problem, self.seed, self._count))

    def _count(self, calls: int) -> None:
        self.calls += calls
        if self.calls > self.budget:  # always a bug in the peer
            raise SearchError(f"a peer used {self.calls} oracle calls, allowed are {self.budget}")


@dataclass(slots=True)
class Run:
    """One training run of a model from the start point."""

    session: Session
    oracle: Oracle
    call: int = 0  # the next minibatch
    finite: bool = True
    losses: list[float] = field(default_factory=list)  # of the minibatches, in order

    def steps(self, calls: int) -> Iterator[float]:
        """Yield the loss of each next minibatch, after computing its gradients, while it is finite.

        The caller takes an optimizer step after each one.
        """
        for _ in range(calls if self.finite else 0):
            self.losses.append(loss := float(self.oracle.gradient("train", self.call)))
            self.call += 1
            if not math.isfinite(loss):
                self.finite = False
                return
            yield loss

    def recent(self, count: int) -> float:
        """Return the mean of the last `count` minibatch losses; infinite if the run diverged."""
        seen = self.losses[-count:]
        return sum(seen) / len(seen) if self.finite and seen else math.inf

    def result(self, note: str = "", tensors: Tensors | None = None) -> PeerResult:
        """Return the peer's result: the current point, or the given tensors."""
        model = self.oracle.model
        point = tensors or {name: item.clone() for name, item in model_tensors(model).items()}
        seconds = time.perf_counter() - self.session.begun
        diverged = not (self.finite and finite(model))
        return PeerResult(point, self.session.calls, seconds, diverged, note)
