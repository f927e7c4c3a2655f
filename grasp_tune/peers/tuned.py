"""Peers that search for a learning rate and pay for the search from the same budget.

All of them tune SGD with momentum 0.9 over learning rates from 1e-5 to 10. They compare the losses
of training minibatches, which come with the gradients and cost no extra calls.
"""

import math
from typing import Any

import torch

from grasp_tune.core.random_streams import address
from grasp_tune.extras import need
from grasp_tune.peers.session import PeerResult, Run, Session

LOW, HIGH = 1e-5, 10.0  # the learning rates that are searched


class Trial:
    """A run from the start point with one learning rate; Ray's scheduler needs `trial_id`."""

    def __init__(self, session: Session, rate: float, number: int = 0) -> None:
        self.run, self.rate, self.score = session.run(), rate, math.inf
        self.optimizer = torch.optim.SGD(self.run.oracle.parameters, lr=rate, momentum=0.9)
        self.trial_id = f"trial{number:04d}"

    def advance(self, calls: int) -> Run:
        for _ in self.run.steps(calls):
            self.optimizer.step()
        return self.run


def _spend_the_rest(session: Session, rate: float) -> PeerResult:
    """Return the result of a new run with this learning rate and all remaining calls."""
    return Trial(session, rate).advance(session.left).result(f"rate {rate:.3g}")


def range_test(session: Session, share: float = 0.1, smoothing: float = 0.95) -> PeerResult:
    """Return the result of a range test: a tenth of T with growing learning rates, then a run.

    The run's rate is a tenth of the one with the smallest smoothed loss, just before divergence.
    """
    steps = max(2, round(share * session.budget)) if session.budget > 3 else 1
    growth = (HIGH / LOW) ** (1.0 / max(1, steps - 1))
    trial, smooth, best, found = Trial(session, LOW), 0.0, math.inf, LOW
    for step, loss in enumerate(trial.run.steps(steps)):
        rate = LOW * growth**step
        trial.optimizer.param_groups[0]["lr"] = rate
        trial.optimizer.step()
        smooth = smoothing * smooth + (1.0 - smoothing) * loss
        mean = smooth / (1.0 - smoothing ** (step + 1))
        if mean < best:
            best, found = mean, rate
        if mean > 4.0 * best:
            break
    return _spend_the_rest(session, found / 10.0)


def tpe(session: Session) -> PeerResult:
    """Return the result of Optuna's TPE: half of T on sixteen short runs, half at the best rate."""
    optuna = need("optuna", "optuna", "this peer")
    trials = max(1, min(16, session.budget // 4))
    each = max(1, session.budget // (2 * trials))

    def objective(asked: Any) -> float:
        trial = Trial(session, asked.suggest_float("rate", LOW, HIGH, log=True))
        run = trial.advance(min(each, session.left - 1))
        # Bounded, because Optuna cannot rank infinite losses and would fail the trial.
        return min(run.recent(max(1, each // 10)), 1e30)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=address(session.seed, "tpe") % 2**32)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=trials)
    return _spend_the_rest(session, float(study.best_params["rate"]))


def asha(session: Session, parallel: int = 4, reduction: int = 4, rungs: int = 3) -> PeerResult:
    """Return the best trial of Ray's ASHA over random rates, with new trials until T is spent.

    Ray's scheduler makes the decisions; a few trials at a time take turns in this process. A trial
    gets at most a quarter of T; there are `rungs` between the shortest trial and the longest.
    """
    longest = max(1, session.budget // 4)
    grace = max(1, longest // reduction**rungs)
    module = need("ray.tune.schedulers", "ray", "this peer")
    scheduler = module.AsyncHyperBandScheduler("calls", "loss", "min", longest, grace, reduction)
    alive: list[Trial] = []
    best: list[Trial] = []  # only the best of the trials that have ended
    started = 0
    while session.left:
        while len(alive) < parallel:
            share = address(session.seed, "asha", started) % 2**53 / 2**53
            alive.append(Trial(session, LOW * (HIGH / LOW) ** share, started))
            scheduler.on_trial_add(None, alive[-1])
            started += 1
        for trial in tuple(alive):
            run = trial.advance(min(grace, session.left, longest - trial.run.call))
            trial.score = run.recent(grace)
            result = {"calls": run.call, "loss": trial.score}
            over = not run.finite or run.call >= longest
            if over or scheduler.on_trial_result(None, trial, result) != scheduler.CONTINUE:
                alive.remove(trial)
                best = [min([*best, trial], key=lambda item: item.score)]
    winner = min([*alive, *best], key=lambda item: item.score)
    return winner.run.result(f"rate {winner.rate:.3g} of {started} trials")
