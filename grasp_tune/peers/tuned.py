"""Peers that look for a learning rate and pay for it out of the same budget.

All of them tune SGD with momentum 0.9 over learning rates from 1e-5 to 10. Losses of the training
minibatches are what they compare: these come with the gradients and cost no further call.
"""

import math
from dataclasses import dataclass
from typing import Any

from grasp_tune.core.random_streams import address
from grasp_tune.peers.session import PeerResult, Run, Session
from grasp_tune.peers.single import load_package, momentum

LOW, HIGH = 1e-5, 10.0  # the learning rates that are searched


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
        rate = self.find(session)
        run = session.run()
        run.advance(momentum(run.oracle.parameters, rate), session.left)
        return run.result(f"rate {rate:.3g}")

    def find(self, session: Session) -> float:
        """Return the rate for the run."""
        steps = max(2, round(self.share * session.budget)) if session.budget > 3 else 1
        run, growth = session.run(), (HIGH / LOW) ** (1.0 / max(1, steps - 1))
        optimizer = momentum(run.oracle.parameters, LOW)
        smooth, best, found = 0.0, math.inf, LOW
        for step in range(steps):
            rate = LOW * growth**step
            optimizer.param_groups[0]["lr"] = rate
            run.advance(optimizer, 1)
            if not run.finite:
                break
            smooth = self.smoothing * smooth + (1.0 - self.smoothing) * run.losses[-1]
            mean = smooth / (1.0 - self.smoothing ** (step + 1))
            if mean < best:
                best, found = mean, rate
            if mean > 4.0 * best:
                break
        return found / 10.0


@dataclass(frozen=True, slots=True)
class Tpe:
    """Optuna's TPE with half of T on short runs, then the other half at the best rate."""

    trials: int = 16

    def __call__(self, session: Session) -> PeerResult:
        """Return the end of the long run."""
        optuna = load_package("optuna")
        trials = max(1, min(self.trials, session.budget // 4))
        each = max(1, session.budget // (2 * trials))

        def objective(trial: Any) -> float:
            rate = trial.suggest_float("rate", LOW, HIGH, log=True)
            run = session.run()
            run.advance(momentum(run.oracle.parameters, rate), min(each, session.left - 1))
            # A loss that Optuna can rank: infinite ones would make it fail the trial.
            return min(run.recent(max(1, each // 10)), 1e30)

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=address(session.seed, "tpe") % 2**32)
        study = optuna.create_study(sampler=sampler)
        study.optimize(objective, n_trials=trials)
        rate = float(study.best_params["rate"])
        run = session.run()
        run.advance(momentum(run.oracle.parameters, rate), session.left)
        return run.result(f"rate {rate:.3g}")


@dataclass(slots=True)
class _Trial:
    """What Ray's scheduler asks of a trial, and the run behind it."""

    trial_id: str
    run: Run
    optimizer: Any
    rate: float
    score: float = math.inf


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
        schedulers = load_package("ray.tune.schedulers")
        longest = max(1, session.budget // 4)
        grace = max(1, longest // self.reduction**self.rungs)
        scheduler = schedulers.AsyncHyperBandScheduler(
            time_attr="calls",
            metric="loss",
            mode="min",
            max_t=longest,
            grace_period=grace,
            reduction_factor=self.reduction,
        )
        alive: list[_Trial] = []
        best: _Trial | None = None  # of those that have ended; the others are not kept
        started = 0
        while session.left:
            while len(alive) < self.parallel:
                alive.append(_start(session, started, scheduler))
                started += 1
            for trial in tuple(alive):
                calls = min(grace, session.left, longest - trial.run.call)
                trial.run.advance(trial.optimizer, calls)
                trial.score = trial.run.recent(grace)
                result = {"calls": trial.run.call, "loss": trial.score}
                over = not trial.run.finite or trial.run.call >= longest
                if over or scheduler.on_trial_result(None, trial, result) != scheduler.CONTINUE:
                    alive.remove(trial)
                    best = trial if best is None else min(best, trial, key=_score)
        best = min([*alive, best] if best else alive, key=_score)
        return best.run.result(f"rate {best.rate:.3g} of {started} trials")


def _score(trial: _Trial) -> float:
    return trial.score


def _start(session: Session, number: int, scheduler: Any) -> _Trial:
    """Return a trial at a log-uniform rate, drawn by its address."""
    share = address(session.seed, "asha", number) % 2**53 / 2**53
    run, rate = session.run(), LOW * (HIGH / LOW) ** share
    trial = _Trial(f"trial{number:04d}", run, momentum(run.oracle.parameters, rate), rate)
    scheduler.on_trial_add(None, trial)
    return trial
