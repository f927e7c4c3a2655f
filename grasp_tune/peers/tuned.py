"""Peers that look for a learning rate and pay for it out of the same budget.

All of them tune SGD with momentum 0.9 over learning rates from 1e-5 to 10. Losses of the training
minibatches are what they compare: these come with the gradients and cost no further call.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from grasp_tune.core.random_streams import address
from grasp_tune.extras import need
from grasp_tune.peers.session import PeerResult, Run, Session

LOW, HIGH = 1e-5, 10.0  # the learning rates that are searched


@dataclass(slots=True)
class Trial:
    """A run with its optimizer, at a rate; Ray's scheduler asks for `trial_id`."""

    run: Run
    rate: float
    optimizer: torch.optim.Optimizer
    trial_id: str
    score: float = math.inf

    @classmethod
    def at(cls, session: Session, rate: float, number: int = 0) -> "Trial":
        """Return a new trial at the start point."""
        run = session.run()
        sgd = torch.optim.SGD(run.oracle.parameters, lr=rate, momentum=0.9)
        return cls(run, rate, sgd, f"trial{number:04d}")

    def advance(self, calls: int) -> None:
        """Take so many steps."""
        self.run.advance(self.optimizer, calls)


def _spend_the_rest(session: Session, rate: float) -> PeerResult:
    """Return the end of a run at the rate that was found, with all calls that are left."""
    trial = Trial.at(session, rate)
    trial.advance(session.left)
    return trial.run.result(f"rate {rate:.3g}")


@dataclass(frozen=True, slots=True)
class RangeTest:
    """A tenth of T on ever larger steps, then all the rest at a tenth of the best of them.

    The usual rule: the step at which the smoothed loss is smallest, divided by ten, because the
    loss is smallest shortly before it explodes.
    """

    share: float = 0.1
    smoothing: float = 0.95

    def __call__(self, session: Session) -> PeerResult:
        """Return the end of the run at the rate that the test found."""
        steps = max(2, round(self.share * session.budget)) if session.budget > 3 else 1
        growth = (HIGH / LOW) ** (1.0 / max(1, steps - 1))
        trial, smooth, best, found = Trial.at(session, LOW), 0.0, math.inf, LOW
        for step in range(steps):
            rate = LOW * growth**step
            trial.optimizer.param_groups[0]["lr"] = rate
            trial.advance(1)
            if not trial.run.finite:
                break
            smooth = self.smoothing * smooth + (1.0 - self.smoothing) * trial.run.losses[-1]
            mean = smooth / (1.0 - self.smoothing ** (step + 1))
            if mean < best:
                best, found = mean, rate
            if mean > 4.0 * best:
                break
        return _spend_the_rest(session, found / 10.0)


@dataclass(frozen=True, slots=True)
class Tpe:
    """Optuna's TPE with half of T on short runs, then the other half at the best rate."""

    trials: int = 16

    def __call__(self, session: Session) -> PeerResult:
        """Return the end of the long run."""
        optuna = need("optuna", "bench", "this peer")
        trials = max(1, min(self.trials, session.budget // 4))
        each = max(1, session.budget // (2 * trials))

        def objective(asked: Any) -> float:
            trial = Trial.at(session, asked.suggest_float("rate", LOW, HIGH, log=True))
            trial.advance(min(each, session.left - 1))
            # A loss that Optuna can rank: infinite ones would make it fail the trial.
            return min(trial.run.recent(max(1, each // 10)), 1e30)

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=address(session.seed, "tpe") % 2**32)
        study = optuna.create_study(sampler=sampler)
        study.optimize(objective, n_trials=trials)
        return _spend_the_rest(session, float(study.best_params["rate"]))


@dataclass(frozen=True, slots=True)
class Asha:
    """Ray's ASHA over random rates: new trials as long as there are calls, the best one returned.

    Ray's scheduler takes the decisions; the trials run in this process, a few side by side, since
    starting a worker for each would cost far more time than the trial. A trial may use a quarter
    of T at most.
    """

    parallel: int = 4
    reduction: int = 4
    rungs: int = 3  # between the first and the longest

    def __call__(self, session: Session) -> PeerResult:
        """Return the trial with the smallest recent loss."""
        longest = max(1, session.budget // 4)
        grace = max(1, longest // self.reduction**self.rungs)
        module = need("ray.tune.schedulers", "bench", "this peer")
        scheduler = module.AsyncHyperBandScheduler(
            "calls", "loss", "min", longest, grace, self.reduction
        )
        alive: list[Trial] = []
        best: Trial | None = None  # of those that have ended; the others are not kept
        started = 0
        while session.left:
            while len(alive) < self.parallel:
                share = address(session.seed, "asha", started) % 2**53 / 2**53
                alive.append(Trial.at(session, LOW * (HIGH / LOW) ** share, started))
                scheduler.on_trial_add(None, alive[-1])
                started += 1
            for trial in tuple(alive):
                trial.advance(min(grace, session.left, longest - trial.run.call))
                trial.score = trial.run.recent(grace)
                result = {"calls": trial.run.call, "loss": trial.score}
                over = not trial.run.finite or trial.run.call >= longest
                if over or scheduler.on_trial_result(None, trial, result) != scheduler.CONTINUE:
                    alive.remove(trial)
                    best = trial if best is None or trial.score < best.score else best
        best = min([*alive, best] if best else alive, key=lambda trial: trial.score)
        return best.run.result(f"rate {best.rate:.3g} of {started} trials")
