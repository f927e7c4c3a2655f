"""How well other hyperparameters are found if trials need no learning rate, on small networks.

    python -m benchmarks.bench_mixed [--seeds 3] [--first 0] [--calls 300] [--cosine] [--only WORD]

TPE over a mixed space, whose trials train without a learning rate (`grasp_tune.optuna.train`),
against TPE alone and TPE with ASHA's pruning, which also search AdamW's learning rate over
1e-5..1e-1 or 1e-5..10. All make the same number of oracle calls: 20 trials of `--calls`, or more
with pruning. Prints the held-out loss of the best trial after a fifth of the calls and after all,
as geometric means over the seeds. Data comes with scikit-learn. Evaluating held-out rows is free
for the rivals; our trials pay for it. Their learning rate is constant, or a cosine with `--cosine`.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import optuna
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, make_friedman1
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.optuna import train

TRIALS = 20  # of a search without pruning
COSINE = False  # whether the rivals' learning rate decays
RANGES = {"1e-5..0.1": (1e-5, 0.1), "1e-5..10": (1e-5, 10.0)}
SHARES = (0.2, 1.0)  # of the calls, after which the best loss is printed

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """What one trial trains."""

    model: Callable[[], nn.Module]
    rows: tuple[Rows, Rows]  # to train on, and held out
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    batch_size: int = 32
    weight_decay: float = 0.0

    def problem(self) -> gt.TorchProblem:
        return gt.TorchProblem(
            model=self.model,
            loss=lambda model, batch: self.loss(model(batch[0]), batch[1]),
            data=self.rows[0],
            validation=self.rows[1],
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
        )

    def held_out(self, model: nn.Module) -> float:
        """Return the loss over all held-out rows; infinite if it is NaN."""
        with torch.no_grad():
            value = float(self.loss(model.eval()(self.rows[1][0]), self.rows[1][1]))
        model.train()
        return value if math.isfinite(value) else math.inf


def split(x: Tensor, y: Tensor) -> tuple[Rows, Rows]:
    """Return training rows, and a quarter of the rows as held-out ones."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    parts = order[len(x) // 4 :], order[: len(x) // 4]
    return (x[parts[0]], y[parts[0]]), (x[parts[1]], y[parts[1]])


@cache
def digits(*shape: int) -> tuple[Rows, Rows]:
    x, y = load_digits(return_X_y=True)
    return split(torch.tensor(x).float().reshape(-1, *shape) / 16.0, torch.tensor(y))


def mlp(trial: optuna.Trial, inputs: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    depth, width = trial.params["layers"], trial.params["width"]
    layers: list[nn.Module] = []
    for at in range(depth):
        layers += [nn.Linear(width if at else inputs, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def digits_mlp(trial: optuna.Trial) -> Setting:
    trial.suggest_int("layers", 1, 4)
    trial.suggest_int("width", 8, 256, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)
    return Setting(lambda: mlp(trial, 64, 10, dropout), digits(64))


def digits_cnn(trial: optuna.Trial) -> Setting:
    width = trial.suggest_int("width", 4, 32, log=True)
    decay = trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True)

    def model() -> nn.Module:
        first = (nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, 10))

    return Setting(model, digits(1, 8, 8), weight_decay=decay)


@cache
def friedman() -> tuple[Rows, Rows]:
    x, y = make_friedman1(2000, noise=0.5, random_state=0)
    return split(torch.tensor(x).float(), torch.tensor((y - y.mean()) / y.std()).float())


def friedman_mlp(trial: optuna.Trial) -> Setting:
    trial.suggest_int("layers", 1, 4)
    trial.suggest_int("width", 8, 128, log=True)
    batch = trial.suggest_categorical("batch_size", [16, 32, 64, 128])
    return Setting(
        lambda: nn.Sequential(mlp(trial, 10, 1), nn.Flatten(0)), friedman(), F.mse_loss, batch
    )


SPACES = {
    "digits MLP: layers, width, dropout": digits_mlp,
    "digits CNN: width, weight decay": digits_cnn,
    "Friedman MLP: layers, width, batch size": friedman_mlp,
}


class Search:
    """One search of a space, and the best loss after each of its trials."""

    def __init__(self, space: Callable[[optuna.Trial], Setting], calls: int, seed: int) -> None:
        self.space, self.calls, self.seed, self.spent = space, calls, seed, 0
        self.marks: list[tuple[int, float]] = []  # (calls, best loss by then)
        self.study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.SuccessiveHalvingPruner(max(1, calls // 9), 3),
        )

    def run(self, objective: Callable[["Search", optuna.Trial], float]) -> "Search":
        while self.spent < TRIALS * self.calls:
            trial = self.study.ask()
            torch.manual_seed(1000 * self.seed + trial.number)
            try:
                self.study.tell(trial, objective(self, trial))
            except optuna.TrialPruned:
                self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            done = self.study.get_trials(False, (optuna.trial.TrialState.COMPLETE,))
            self.marks.append((self.spent, min((t.value or 0.0 for t in done), default=math.inf)))
        return self

    def at(self, share: float) -> float:
        """Return the best loss after this share of the calls."""
        limit = share * TRIALS * self.calls
        return min((loss for calls, loss in self.marks if calls <= limit), default=math.inf)


def grasp_trial(search: Search, trial: optuna.Trial) -> float:
    problem = search.space(trial).problem()
    search.spent += search.calls
    # No pruning: the reports are of training losses.
    return train(_Unpruned(trial), problem, search.calls, seed=search.seed)  # type: ignore[arg-type]


class _Unpruned:
    """A trial that accepts reports and is never pruned."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.set_user_attr, self.report, self.study = trial.set_user_attr, trial.report, trial.study

    def should_prune(self) -> bool:
        return False


def adamw_trial(
    ends: tuple[float, float], prune: bool, search: Search, trial: optuna.Trial
) -> float:
    setting = search.space(trial)
    lr = trial.suggest_float("lr", *ends, log=True)
    model, (x, y), size = setting.model(), setting.rows[0], setting.batch_size
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=setting.weight_decay)
    for call in range(1, search.calls + 1):
        rows = torch.randint(0, len(x), (size,))
        opt.zero_grad()
        setting.loss(model(x[rows]), y[rows]).backward()
        opt.step()
        if COSINE:
            opt.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * call / search.calls))
        search.spent += 1
        if prune and call in (search.calls // 9, search.calls // 3):
            trial.report(setting.held_out(model), call)
            if trial.should_prune():
                raise optuna.TrialPruned
    return setting.held_out(model)


def methods() -> dict[str, Callable[[Search, optuna.Trial], float]]:
    found: dict[str, Callable[[Search, optuna.Trial], float]] = {"grasp": grasp_trial}
    for word, prune in (("TPE", False), ("TPE, ASHA", True)):
        for ends in RANGES:
            found[f"{word} {ends}"] = partial(adamw_trial, RANGES[ends], prune)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Mixed spaces, with and without a learning rate.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--calls", type=int, default=300, help="oracle calls of a trial")
    parser.add_argument("--cosine", action="store_true", help="the rivals' rate falls to 0")
    parser.add_argument("--only", default="", help="spaces whose name holds this word")
    given = parser.parse_args()
    global COSINE
    COSINE = given.cosine
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    print(f"| {given.calls} calls a trial | after | " + " | ".join(methods()) + " |")
    for name, space in SPACES.items():
        if given.only not in name:
            continue
        means: dict[str, list[float]] = {}
        for method, objective in methods().items():
            seeds = range(given.first, given.first + given.seeds)
            runs = [Search(space, given.calls, seed).run(objective) for seed in seeds]
            ends = [[math.log(max(run.at(share), 1e-12)) for run in runs] for share in SHARES]
            means[method] = [math.exp(statistics.fmean(logs)) for logs in ends]
        for at, share in enumerate(SHARES):
            cells = " | ".join(f"{means[method][at]:.3g}" for method in means)
            print(f"| {name} | {share:.0%} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
