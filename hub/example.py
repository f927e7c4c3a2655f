"""Minimises a noisy quadratic by SGD without a step size to choose; prints the best and ends."""

import math
import random

import optuna
import optunahub


module = optunahub.load_module("samplers/grasp")


def objective(trial: optuna.Trial) -> float:
    x, draw = 3.0, random.Random(1)
    step = trial.suggest_float("lr", 1e-16, 1e12, log=True)
    for _ in module.grasp_budget(trial):
        x -= step * (2.0 * (x - 1.0) + draw.gauss(0.0, 0.5))
        if abs(x) > 1e100:
            return math.inf
    return (x - 1.0) ** 2


study = optuna.create_study(sampler=module.GraspSampler(budget=4_000, parameter="lr"))
study.optimize(objective)
print(f"{len(study.trials)} trials")
print(f"best step size {study.best_params['lr']:.3g}, value {study.best_value:.3g}")
