"""Peers that are one run of one optimizer with all of the budget: nothing is tuned on the way.

Packages are imported when they are used, and run at their authors' defaults.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from grasp_tune.engine.averaging import Averages
from grasp_tune.extras import need
from grasp_tune.peers.session import PeerResult, Run, Session

GAMMA = 8.0  # the exponent that the authors of DoG recommend for its averages

Maker = Callable[[Run, int], Optimizer]  # for a run and a budget

# Import names and the names to install them by, where they differ.
_DISTRIBUTIONS = {
    "dog": "dog-optimizer",
    "mechanic_pytorch": "mechanic-pytorch",
    "momo": "momo-opt",
    "prodigyplus": "prodigy-plus-schedule-free",
    "pytorch_optimizer": "pytorch-optimizer",
}


def load_package(module: str) -> Any:
    """Return a package of the extra `bench`; `MissingExtra` says how to get it."""
    return need(module, "bench", "this peer", _DISTRIBUTIONS.get(module, ""))


def packaged(kind: str, **options: Any) -> Maker:
    """Return what makes the optimizer `package.Class` with these options."""
    package, _, name = kind.rpartition(".")
    return lambda run, _: getattr(load_package(package), name)(run.oracle.parameters, **options)


def momentum(params: list[nn.Parameter], rate: float = 0.1) -> Optimizer:
    """SGD with momentum 0.9, at the step 0.1 of many published recipes or at another."""
    return torch.optim.SGD(params, lr=rate, momentum=0.9)


@dataclass(frozen=True, slots=True)
class SingleRun:
    """All of T with one optimizer.

    make: the optimizer for a run and a budget.
    average: return the polynomial average instead of the last iterate.
    rate: the factor of the learning rate after a share of the budget.
    step: makes what takes a step of an optimizer that wants to be told the loss.
    modes: the optimizer has train() and eval(), and must be told.
    """

    make: Maker
    average: bool = False
    rate: Callable[[float], float] | None = None
    step: Callable[[], Callable[[Any, float], None]] | None = None
    modes: bool = False

    def __call__(self, session: Session) -> PeerResult:
        """Return the last point, or the average, of the run."""
        run, budget, rate = session.run(), session.budget, self.rate
        averages = Averages(run.oracle.model, (GAMMA,)) if self.average else None
        told = {} if self.step is None else {"step": self.step()}
        with warnings.catch_warnings():
            # Packages older than the present torch warn in every step, of nothing that matters.
            warnings.simplefilter("ignore")
            optimizer: Any = self.make(run, budget)
            if self.modes:
                optimizer.train()
            run.advance(
                optimizer,
                budget,
                after=averages.update if averages else None,
                rate=None if rate is None else lambda call: rate(call / budget),
                **told,
            )
            if self.modes:
                optimizer.eval()
        return run.result(tensors=averages.candidate(GAMMA) if averages else None)


def cosine(share: float) -> float:
    """Return the factor of the learning rate after a share of the budget: 1 at 0, 0 at 1."""
    return 0.5 * (1.0 + math.cos(math.pi * share))


def warm_cosine(share: float, warm_up: float = 0.05) -> float:
    """Return the factor of the rate: linear from 0 to 1 during the warm-up, then a cosine to 0."""
    if share < warm_up:
        return share / warm_up
    return cosine((share - warm_up) / (1.0 - warm_up))


def adamw_cosine(rate: float) -> SingleRun:
    """AdamW with torch's other defaults, 5 % warm-up and a cosine: what most people run."""
    return SingleRun(packaged("torch.optim.AdamW", lr=rate), rate=warm_cosine)
