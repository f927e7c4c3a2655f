"""Minimises a noisy quadratic by SGD with a plan of step sizes; prints the best and ends."""

import math
import random

import optuna

import grasp_tune as gt
from grasp_tune.optuna import GraspSampler, grasp_budget


def gradient(x: float, draw: random.Random) -> float:
    return 2.0 * (x - 1.0) + draw.gauss(0.0, 0.5)


def main() -> None:
    budget, start = 4_000, 3.0
    probe = random.Random(0)
    samples = budget // 4  # what the plan sets aside for looking at the start point
    norm = abs(sum(gradient(start, probe) for _ in range(samples)) / samples)
    plan = gt.NonConvex().plan(budget=budget, grad_norm=norm)
    sampler = GraspSampler(plan, "lr")

    def objective(trial: optuna.Trial) -> float:
        step, x, draw = sampler.suggest(trial), start, random.Random(1)
        for _ in grasp_budget(trial):
            x -= step * gradient(x, draw)
            if abs(x) > 1e100:
                return math.inf
        return (x - 1.0) ** 2

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective)
    print(
        f"{len(study.trials)} trials, {plan.total_calls} of {plan.budget} oracle calls in the plan"
    )
    print(f"best step size {study.best_params['lr']:.3g}, value {study.best_value:.3g}")


if __name__ == "__main__":
    main()
