"""Peers that are one run of one optimizer with all of the budget: nothing is tuned on the way."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from grasp_tune.peers.session import Answer, Session

GAMMA = 8.0  # the exponent that the authors of DoG recommend for its averages

Maker = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True, slots=True)
class SingleRun:
    """All of T with one optimizer at its defaults."""

    make: Maker
    average: bool = False  # return the polynomial average instead of the last iterate
    cosine: bool = False  # bring the learning rate down to 0 over the budget
    modes: bool = False  # the optimizer has train() and eval(), and must be told

    def __call__(self, session: Session) -> Answer:
        """Return the last point, or the average, of the run."""
        run = session.run()
        budget = session.budget
        averages = run.averages(GAMMA) if self.average else None
        with warnings.catch_warnings():
            # Packages older than the present torch warn in every step, of nothing that matters.
            warnings.simplefilter("ignore")
            optimizer = self.make(run.oracle.parameters)
            if self.modes:
                optimizer.train()  # type: ignore[attr-defined]
            run.advance(
                optimizer,
                budget,
                after=averages.update if averages else None,
                rate=(lambda call: cosine(call / budget)) if self.cosine else None,
            )
            if self.modes:
                optimizer.eval()  # type: ignore[attr-defined]
        sound = run.sound()
        tensors = averages.candidate(GAMMA) if averages else run.tensors()
        return Answer(tensors, diverged=not sound)


def cosine(share: float) -> float:
    """Return the factor of the learning rate after a share of the budget: 1 at 0, 0 at 1."""
    return 0.5 * (1.0 + math.cos(math.pi * share))
