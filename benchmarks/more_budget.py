"""Checks the report's advice about more budget, by resuming runs with twice the budget.

    python -m benchmarks.more_budget FOLDER [SEED]

Prints the report's advice after the first budget, and how much the held-out loss fell when the run
was resumed, and in a run with twice the budget from the start. Missing data sets are left out.
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from grasp_tune.config import experiment_from, run_experiment
from grasp_tune.config.errors import MissingDataError
from grasp_tune.report.advice import next_steps

BUDGETS = (300, 600, 1200, 2500, 4000)
ADVICE = ("is likely to help", "may help a little", "is unlikely to help")


def _mlp(*hidden: int) -> dict[str, Any]:
    return {"name": "mlp", "hidden": hidden}


_MNIST = {"name": "mnist", "rows": 8000}
PROBLEMS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "model": _mlp(64, 64), "validation": 0.1},
    "digits-deep": {"dataset": "digits", "model": _mlp(*[32] * 8)},
    "digits-softmax": {"dataset": "digits", "model": "softmax"},
    "breast-cancer": {"dataset": "breast_cancer", "model": _mlp(32)},
    "spirals": {"dataset": "spirals", "model": _mlp(64, 64)},
    "mnist-cnn": {"dataset": _MNIST, "model": "cnn"},
    "mnist": {"dataset": _MNIST, "model": _mlp(128)},
    "mnist-validation": {"dataset": _MNIST, "model": _mlp(128), "validation": 0.1},
}


def main(folder: Path, seed: int) -> None:
    found = defaultdict[str, list[float]](list)
    for name, problem in PROBLEMS.items():
        for budget in BUDGETS:
            losses, advice = [], ""
            for twice, place in ((1, "resumed"), (2, "resumed"), (2, "anew")):
                config = {"problem": problem, "budget": twice * budget, "seed": seed}
                out = folder / f"{name}-{budget}-{seed}-{place}"
                try:
                    ended = run_experiment(experiment_from(config), out, progress=False)
                except MissingDataError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    break
                assert ended.metadata.quality is not None
                losses.append(ended.metadata.quality.held_out[1].loss)
                said = " ".join(next_steps(ended.result, ended.metadata))
                advice = advice or next((words for words in ADVICE if words in said), "nothing")
            else:
                first, *others = losses
                gains = [1.0 - loss / first for loss in others]
                found[advice].append(gains[0])
                print(f"{name}, {budget} calls, {advice}: {gains[0]:.0%}, anew {gains[1]:.0%}")
    for advice, falls in found.items():
        better, worse = (sum(sign * gain > 0.05 for gain in falls) for sign in (1, -1))
        print(f"{advice}: of {len(falls)} runs {better} better by 5 %, {worse} worse")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
