"""One peer's access to a problem: counted oracle calls, training, the point returned.

Peers see the minibatches that the cells of a sweep see: call t of a run is the training minibatch
with address t, so that all are compared on equal terms.
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
    """The end of one peer's run with one seed."""

    tensors: Tensors = field(repr=False)  # `param.*` and `buffer.*` of the returned point
    calls: int  # oracle calls used, at most the budget
    seconds: float
    diverged: bool  # the returned point, or the run that led to it, stopped being finite
    note: str = ""  # what was chosen on the way: a learning rate, a number of trials


class Session:
    """A budget of oracle calls on one problem, shared by all runs that a peer makes."""

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
        if self.calls > self.budget:  # a bug in a peer, never the user's fault
            raise SearchError(f"a peer used {self.calls} oracle calls, allowed are {self.budget}")


@dataclass(slots=True)
class Run:
    """One model on its way from the start point."""

    session: Session
    oracle: Oracle
    call: int = 0  # the next minibatch
    finite: bool = True
    losses: list[float] = field(default_factory=list)  # of the minibatches, in order

    def steps(self, calls: int) -> Iterator[float]:
        """Yield the loss of each further minibatch, its gradients in place; ends where not finite.

        Whoever asks takes a step of its optimizer in between.
        """
        for _ in range(calls if self.finite else 0):
            self.losses.append(loss := float(self.oracle.gradient("train", self.call)))
            self.call += 1
            if not math.isfinite(loss):
                self.finite = False
                return
            yield loss

    def recent(self, count: int) -> float:
        """Return the mean of the last `count` minibatch losses; infinite for a run that ended."""
        seen = self.losses[-count:]
        return sum(seen) / len(seen) if self.finite and seen else math.inf

    def result(self, note: str = "", tensors: Tensors | None = None) -> PeerResult:
        """Return the present point, or others of the run, as what the peer ends with."""
        model = self.oracle.model
        point = tensors or {name: item.clone() for name, item in model_tensors(model).items()}
        seconds = time.perf_counter() - self.session.begun
        diverged = not (self.finite and finite(model))
        return PeerResult(point, self.session.calls, seconds, diverged, note)
