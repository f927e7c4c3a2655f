"""How good a step size is found if only a step size and a number of calls can be set.

    python -m benchmarks.bench_optuna_step [--seeds 3] [--only WORD]

GraspSampler(budget=T), with and without checkpoints, against TPE (ten trials of T/10 calls) and
ASHA (random step sizes, Optuna's successive halving up to T/5 calls) over 1e-5..10 and 1e-5..1e-1,
with T oracle calls each; geometric means over the seeds. The models are small and use NumPy, so the
table takes minutes. The exit code is 1 if a rival is better by more than a tenth.
"""

import argparse
import copy
import math
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from grasp_tune.optuna import GraspSampler, grasp_budget

Array = np.ndarray
Weights = list[Array]
RANGES = {"1e-5..10": (1e-5, 10.0), "1e-5..0.1": (1e-5, 0.1)}
BATCH = 32  # rows of a minibatch
TRIALS = 10  # of TPE


def digits() -> tuple[Array, Array]:
    x, y = load_digits(return_X_y=True)
    return x / 16.0, np.eye(10)[y]


def cancer() -> tuple[Array, Array]:
    x, y = load_breast_cancer(return_X_y=True)
    return (x - x.mean(0)) / x.std(0), np.eye(2)[y]


def diabetes() -> tuple[Array, Array]:
    x, y = load_diabetes(return_X_y=True)
    return x / x.std(0), ((y - y.mean()) / y.std())[:, None]


@dataclass(frozen=True)
class Objective:
    """A small network on real data; its value is the loss over all rows, or over held-out ones."""

    name: str
    data: Callable[[], tuple[Array, Array]]
    hidden: tuple[int, ...]
    classes: bool
    base: str  # sgd, momentum or adam
    budget: int
    held_out: bool = False

    def load(self, seed: int) -> None:
        x, y = self.data()
        order = np.random.default_rng(seed).permutation(len(x))
        cut = len(x) * 3 // 4 if self.held_out else len(x)
        train, test = order[:cut], order[cut:] if self.held_out else order
        object.__setattr__(self, "train", (x[train], y[train]))
        object.__setattr__(self, "test", (x[test], y[test]))

    def start(self, seed: int) -> "Run":
        draw, weights = np.random.default_rng([seed, 1]), []
        sizes = [self.train[0].shape[1], *self.hidden, self.train[1].shape[1]]  # type: ignore[attr-defined]
        for inside, outside in pairwise(sizes):
            bound = 1.0 / math.sqrt(inside)
            weights += [draw.uniform(-bound, bound, (inside, outside)), np.zeros(outside)]
        return Run(self, weights, seed)

    def forward(self, weights: Weights, x: Array) -> list[Array]:
        layers = [x]
        for at in range(0, len(weights), 2):
            x = x @ weights[at] + weights[at + 1]
            layers.append(np.maximum(x, 0.0) if at + 2 < len(weights) else x)
            x = layers[-1]
        return layers

    def loss(self, out: Array, y: Array) -> tuple[float, Array]:
        """Return the mean loss and its gradient with respect to the outputs."""
        if not self.classes:
            return float(((out - y) ** 2).mean()), 2.0 * (out - y) / len(y)
        out = out - out.max(1, keepdims=True)
        logs = out - np.log(np.exp(out).sum(1, keepdims=True))
        return float(-(logs * y).sum(1).mean()), (np.exp(logs) - y) / len(y)

    def value(self, weights: Weights) -> float:
        x, y = self.test  # type: ignore[attr-defined]
        return self.loss(self.forward(weights, x)[-1], y)[0]


class Run:
    """A run from the start point: its weights, optimizer state and minibatches."""

    def __init__(self, objective: Objective, weights: Weights, seed: int) -> None:
        self.objective, self.weights, self.calls = objective, weights, 0
        self.first = [np.zeros_like(w) for w in weights]
        self.second = [np.zeros_like(w) for w in weights]
        self._draw = np.random.default_rng([seed, 2])

    def step(self, size: float) -> None:
        objective, weights = self.objective, self.weights
        x, y = objective.train  # type: ignore[attr-defined]
        rows = self._draw.integers(0, len(x), BATCH)
        layers = objective.forward(weights, x[rows])
        _, slope = objective.loss(layers[-1], y[rows])
        self.calls += 1
        for at in range(len(weights) - 2, -1, -2):
            gradients = layers[at // 2].T @ slope, slope.sum(0)
            if at:
                slope = (slope @ weights[at].T) * (layers[at // 2] > 0.0)
            for index, gradient in zip((at, at + 1), gradients, strict=True):
                weights[index] = weights[index] - size * self._direction(index, gradient)

    def _direction(self, index: int, gradient: Array) -> Array:
        base, first, second = self.objective.base, self.first, self.second
        if base == "sgd":
            return gradient
        if base == "momentum":
            first[index] = 0.9 * first[index] + gradient
            return first[index]
        first[index] = 0.9 * first[index] + 0.1 * gradient
        second[index] = 0.999 * second[index] + 0.001 * gradient * gradient
        mean = first[index] / (1.0 - 0.9**self.calls)
        return mean / (np.sqrt(second[index] / (1.0 - 0.999**self.calls)) + 1e-8)

    def value(self) -> float:
        found = self.objective.value(self.weights)
        return found if math.isfinite(found) else math.inf


OBJECTIVES = (
    Objective("digits MLP, SGD, 2k", digits, (64,), True, "sgd", 2_000),
    Objective("digits MLP, Adam, 2k", digits, (64,), True, "adam", 2_000),
    Objective("digits MLP, SGD, 10k", digits, (64,), True, "sgd", 10_000),
    Objective("digits MLP, Adam, 10k", digits, (64,), True, "adam", 10_000),
    Objective("cancer logistic, SGD, 2k", cancer, (), True, "sgd", 2_000),
    Objective("diabetes MLP, momentum, 4k", diabetes, (32,), False, "momentum", 4_000),
    Objective("digits held out, SGD, 2k", digits, (64,), True, "sgd", 2_000, held_out=True),
    Objective("diabetes held out, Adam, 2k", diabetes, (32,), False, "adam", 2_000, held_out=True),
)


# -- the searches --------------------------------------------------------------------------------


def grasp(objective: Objective, seed: int, *, resume: bool) -> float:
    sampler = GraspSampler(budget=objective.budget, resume=resume)
    study = optuna.create_study(sampler=sampler)
    runs: dict[int, Run] = {}  # checkpoints by trial

    def trial(trial: optuna.Trial) -> float:
        step, budget = sampler.suggest(trial), grasp_budget(trial)
        run = objective.start(seed) if budget.parent is None else copy.deepcopy(runs[budget.parent])
        for _ in budget:
            run.step(step)
        if resume:
            runs[trial.number] = run
        return run.value()

    study.optimize(trial)
    return study.best_value


def tpe(objective: Objective, seed: int, ends: tuple[float, float]) -> float:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def trial(trial: optuna.Trial) -> float:
        step, run = trial.suggest_float("lr", *ends, log=True), objective.start(seed)
        for _ in range(objective.budget // TRIALS):
            run.step(step)
        return run.value()

    study.optimize(trial, n_trials=TRIALS)
    return study.best_value


def asha(objective: Objective, seed: int, ends: tuple[float, float]) -> float:
    """Return the best value that any trial reported, at a rung or at its end."""
    longest, left, best = objective.budget // 5, objective.budget, math.inf
    shortest = longest // 27
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=shortest, reduction_factor=3)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed), pruner=halving)

    def trial(trial: optuna.Trial) -> float:
        nonlocal left, best
        step, run = trial.suggest_float("lr", *ends, log=True), objective.start(seed)
        for call in range(1, min(longest, left) + 1):
            run.step(step)
            left -= 1
            if call in (shortest, 3 * shortest, 9 * shortest):
                best = min(best, run.value())
                trial.report(min(run.value(), 1e300), call)
                if left and trial.should_prune():
                    raise optuna.TrialPruned
        best = min(best, run.value())
        if not left:
            study.stop()
        return run.value()

    study.optimize(trial)
    return best


METHODS: dict[str, Callable[[Objective, int], float]] = {
    "grasp": partial(grasp, resume=False),
    "grasp, checkpoints": partial(grasp, resume=True),
    **{f"TPE {name}": partial(tpe, ends=ends) for name, ends in RANGES.items()},
    **{f"ASHA {name}": partial(asha, ends=ends) for name, ends in RANGES.items()},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="objectives whose name contains this")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    print("| objective | " + " | ".join(METHODS) + " |")
    print("|---" * (len(METHODS) + 1) + "|")
    worse = []
    for objective in (item for item in OBJECTIVES if options.only in item.name):
        found: dict[str, list[float]] = {name: [] for name in METHODS}
        for seed in range(options.first, options.first + options.seeds):
            with np.errstate(all="ignore"):  # step sizes that are too large diverge
                objective.load(seed)
                for name, search in METHODS.items():
                    found[name].append(search(objective, seed))
        means = {name: _mean(values) for name, values in found.items()}
        print(f"| {objective.name} | " + " | ".join(f"{m:.2g}" for m in means.values()) + " |")
        sys.stdout.flush()
        worse += [
            f"{objective.name}: {ours} {means[ours]:.4g}, {name} {mean:.4g}"
            for name, mean in list(means.items())[2:]
            for ours in list(METHODS)[:2]
            if means[ours] > 1.1 * mean
        ]
    print("\n".join(worse) or "nowhere worse than a rival by more than a tenth")
    return int(bool(worse))


def _mean(values: list[float]) -> float:
    """Return the geometric mean, since losses of different seeds differ by factors."""
    return math.exp(statistics.fmean(math.log(max(value, 1e-300)) for value in values))


if __name__ == "__main__":
    sys.exit(main())
