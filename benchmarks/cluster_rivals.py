"""Rivals of a sweep on eight workers: Ray's ASHA and PBT, and Optuna's TPE, over the step size.

All train with an oracle that sleeps, since real ones would compete for the cores of one machine.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import grasp_tune as gt

RATES = 1e-5, 10.0  # range that the rivals search
WORKERS = 8
Batch = tuple[Tensor, Tensor]


def _softmax() -> nn.Module:
    return nn.Linear(20, 5)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))


def _deep() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), *hidden, nn.Linear(64, 5))


WORKLOADS = {"noisy convex": _softmax, "network": _network, "deep network": _deep}


def sleeping(model: Callable[[], nn.Module], pause: float) -> gt.TorchProblem:
    """Return a problem with a fifth of its labels wrong and an oracle that sleeps."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4000, 20, generator=draw)
    y = (x @ torch.randn(20, 5, generator=draw) + 0.3 * torch.sin(3 * x[:, :5])).argmax(1)
    wrong = torch.rand(len(y), generator=draw) < 0.2
    y[wrong] = torch.randint(0, 5, (int(wrong.sum()),), generator=draw)

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        time.sleep(pause)
        return functional.cross_entropy(module(batch[0]), batch[1])

    return gt.TorchProblem(model=model, loss=loss, data=(x, y), batch_size=16, device="cpu")


def whole_loss(model: nn.Module, problem: gt.TorchProblem) -> float:
    """Return the loss of a model over all rows."""
    x, y = problem.data  # type: ignore[misc]
    with torch.no_grad():
        return float(functional.cross_entropy(model(x), y))


def steps(
    problem: gt.TorchProblem, model: nn.Module, sgd: torch.optim.Optimizer, seed: int
) -> Iterator[float]:
    """Yield the loss over all rows after every tenth step of a rival's training."""
    x, y = problem.data  # type: ignore[misc]
    draw = torch.Generator().manual_seed(seed)
    while True:
        for _ in range(10):
            rows = torch.randint(0, len(y), (problem.batch_size,), generator=draw)
            sgd.zero_grad()
            problem.loss(model, (x[rows], y[rows])).backward()
            sgd.step()
        found = whole_loss(model, problem)
        yield found if math.isfinite(found) else 1e30


def beginning(problem: gt.TorchProblem, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the start point, which is the same for all, and an optimizer."""
    model = problem.build(0)
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def tune_rival(name: str, pause: float, budget: int, seconds: float, kind: str) -> float:
    """Return the best loss of Ray's ASHA or PBT after so many seconds on eight workers."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

    def train(config: dict[str, Any]) -> None:
        problem = sleeping(WORKLOADS[name], pause)
        module, sgd = beginning(problem, config["lr"])
        if (kept := tune.get_checkpoint()) is not None:
            with kept.as_directory() as folder:
                state = torch.load(Path(folder) / "state.pt", weights_only=True)
            module.load_state_dict(state["model"])
            sgd.load_state_dict(state["sgd"])
            sgd.param_groups[0]["lr"] = config["lr"]
        for at, loss in enumerate(steps(problem, module, sgd, seed=int(1e6 * config["lr"])), 1):
            if kind == "PBT" and at % every == 0:
                with tempfile.TemporaryDirectory() as folder:
                    state = {"model": module.state_dict(), "sgd": sgd.state_dict()}
                    torch.save(state, Path(folder) / "state.pt")
                    tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))
            else:
                tune.report({"loss": loss})

    longest = max(8, budget // 40)  # reports of ten steps: a quarter of T
    every = max(1, longest // 16)
    space = tune.loguniform(*RATES)
    if kind == "ASHA":
        scheduler: Any = ASHAScheduler(max_t=longest, grace_period=max(1, longest // 64))
    else:
        scheduler = PopulationBasedTraining(
            perturbation_interval=every, hyperparam_mutations={"lr": space}
        )
    with tempfile.TemporaryDirectory() as folder:
        found = tune.run(
            train,
            config={"lr": space},
            num_samples=-1 if kind == "ASHA" else WORKERS,
            scheduler=scheduler,
            metric="loss",
            mode="min",
            time_budget_s=seconds,
            storage_path=folder,
            max_concurrent_trials=WORKERS,
            verbose=0,
            raise_on_failed_trial=False,
        )
        trials = [trial.metric_analysis.get("loss", {}) for trial in found.trials]
        return min((item["min"] for item in trials if item), default=math.nan)


def tpe_process(
    name: str, pause: float, budget: int, storage: str, end: float, found: Any, seed: int
) -> None:
    """Run trials of a study until the time is up; put the best loss into `found`."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    problem = sleeping(WORKLOADS[name], pause)

    def objective(trial: optuna.Trial) -> float:
        module, sgd = beginning(problem, trial.suggest_float("lr", *RATES, log=True))
        loss = math.nan
        for at, loss in enumerate(steps(problem, module, sgd, trial.number), 1):
            with found.get_lock():
                found.value = min(found.value, loss)
            if at >= max(8, budget // 40) or time.time() > end:
                break
        return loss

    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(storage)),
        study_name="s",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    )
    study.optimize(objective, timeout=max(0.1, end - time.time()))


def tpe(name: str, pause: float, budget: int, seconds: float) -> float:
    """Return the best loss of Optuna's TPE after so many seconds with eight processes."""
    context = get_context("spawn")
    found, end = context.Value("d", math.inf), time.time() + seconds
    with tempfile.TemporaryDirectory() as folder:
        given = name, pause, budget, f"{folder}/study.journal", end, found
        processes = [
            context.Process(target=tpe_process, args=(*given, seed)) for seed in range(WORKERS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return float(found.value)
