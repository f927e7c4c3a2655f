"""The peers by name: what `compare` and the benchmark run beside the method."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.threads import task_threads
from grasp_tune.peers.modern import GreedyRate, muon
from grasp_tune.peers.session import PeerResult, Run, Session
from grasp_tune.peers.single import (
    SingleRun,
    adamw_cosine,
    cosine,
    load_package,
    packaged,
    warm_cosine,
)
from grasp_tune.peers.tuned import Asha, RangeTest, Tpe


@dataclass(frozen=True, slots=True)
class Peer:
    """Another way to spend the same oracle calls."""

    name: str
    title: str
    work: Callable[[Session], PeerResult]
    package: str | None = None  # what has to be installed beside torch

    @property
    def installed(self) -> bool:
        """Whether its package can be imported."""
        return self.package is None or find_spec(self.package) is not None

    def run(self, problem: TorchProblem, budget: int, seed: int) -> PeerResult:
        """Return what the peer makes of the problem with at most `budget` oracle calls.

        It gets as many threads as a task of a sweep on the same model, so that times compare.
        Raises `MissingExtra` where its package is not installed.
        """
        session = Session(problem, budget, seed)
        start = time.perf_counter()
        with task_threads(problem.build(seed)):
            result = self.work(session)
        return replace(result, calls=session.calls, seconds=time.perf_counter() - start)


_OURS = "grasp_tune.peers.modern"


def _mechanic(run: Run, budget: int) -> Optimizer:
    """Mechanic around AdamW (Cutkosky, Defazio, Mehta 2023), whose own rate is then 1."""
    kind = load_package("mechanic_pytorch").mechanize(torch.optim.AdamW)
    made: Optimizer = kind(run.oracle.parameters, lr=1.0, weight_decay=0.0)
    return made


def _ademamix(run: Run, budget: int) -> Optimizer:
    """AdEMAMix (Pagliardini et al. 2024), its two schedules as long as the run."""
    return packaged("pytorch_optimizer.AdEMAMix", t_alpha_beta3=float(budget))(run, budget)


def _single(
    name: str, title: str, kind: str, options: Mapping[str, Any] | None = None, **how: Any
) -> Peer:
    """Return one run of `package.Class`."""
    package = kind.rpartition(".")[0]
    needed = None if package in ("torch.optim", _OURS) else package
    return Peer(name, title, SingleRun(packaged(kind, **(options or {})), **how), needed)


_MOMENTUM = {"lr": 0.1, "momentum": 0.9}  # of many published recipes
_PRODIGY = {"safeguard_warmup": True, "use_bias_correction": True}  # where the rate is annealed
# Random rounding is for bfloat16 and would draw random numbers; groups there are none.
_PLUS = {"stochastic_rounding": False, "split_groups": False}


# Rates that are constant by default are brought down along a cosine where their authors do so.
_ALL = (
    # Distance over gradients (Ivgi, Hinder, Carmon 2023); LDoG has a step for every tensor.
    _single("dog", "DoG, averaged", "dog.DoG", average=True),
    _single("ldog", "LDoG, averaged", "dog.LDoG", average=True),
    # Mishchenko, Defazio 2023.
    _single("prodigy", "Prodigy", "prodigyopt.Prodigy"),
    _single(
        "prodigy-cosine",
        "Prodigy, cosine, as advised",
        "prodigyopt.Prodigy",
        _PRODIGY,
        rate=cosine,
    ),
    # Defazio, Mishchenko 2023.
    _single("dadapt-sgd", "D-Adaptation SGD", "dadaptation.DAdaptSGD"),
    _single("dadapt-adam", "D-Adaptation Adam", "dadaptation.DAdaptAdam"),
    # Coin betting per coordinate (Orabona, Tommasi 2017), and the Krichevsky-Trofimov bettor
    # (Orabona, Pal 2016), which assumes gradients of norm at most 1.
    _single("cocob", "COCOB", "parameterfree.COCOB"),
    _single("kt", "KT", "parameterfree.KT"),
    Peer("mechanic", "Mechanic (AdamW)", SingleRun(_mechanic), "mechanic_pytorch"),
    # Defazio et al. 2024.
    _single(
        "schedule-free-adamw", "Schedule-free AdamW", "schedulefree.AdamWScheduleFree", modes=True
    ),
    _single("schedule-free-sgd", "Schedule-free SGD", "schedulefree.SGDScheduleFree", modes=True),
    # torch's own defaults; SGD's are a step of 0.001 and no momentum.
    _single("adamw", "AdamW, defaults", "torch.optim.AdamW"),
    _single("sgd", "SGD, defaults", "torch.optim.SGD"),
    _single("momentum", "SGD 0.1, momentum 0.9", "torch.optim.SGD", _MOMENTUM),
    Peer("range-test", "LR-range test, then SGD", RangeTest()),
    Peer("tpe", "Optuna TPE", Tpe(), "optuna"),
    Peer("asha", "Ray ASHA", Asha(), "ray"),
    Peer("adamw-cosine", "AdamW, warm-up, cosine", adamw_cosine(1e-3)),
    # Dahl et al. 2023: 2 % warm-up.
    _single(
        "nadamw",
        "NAdamW, AlgoPerf's constants",
        f"{_OURS}.NAdamW",
        rate=lambda share: warm_cosine(share, 0.02),
    ),
    # Defazio 2026.
    _single(
        "schedule-free-plus",
        "ScheduleFree+",
        f"{_OURS}.ScheduleFreePlus",
        step=lambda: lambda optimizer, loss: optimizer.step(loss),
        modes=True,
    ),
    # LoganBooker's package, 2024 to 2026.
    _single(
        "prodigy-plus",
        "Prodigy, schedule-free",
        "prodigyplus.ProdigyPlusScheduleFree",
        _PLUS,
        modes=True,
    ),
    Peer("muon", "Muon, cosine", SingleRun(muon, rate=cosine), "pytorch_optimizer"),
    Peer(
        "ademamix", "AdEMAMix, cosine", SingleRun(_ademamix, rate=warm_cosine), "pytorch_optimizer"
    ),
    # Schaipp et al. 2024, a lower bound of 0.
    _single(
        "momo",
        "MoMo-Adam",
        "momo.MomoAdam",
        step=lambda: lambda optimizer, loss: optimizer.step(loss=torch.tensor(loss)),
    ),
    # DoWG for each coordinate, as its authors' package has it (Khaled et al. 2023).
    _single("dowg", "DoWG", "dowg.CoordinateDoWG"),
    _single("greedy-lr", "AdamW, GreedyLR", "torch.optim.AdamW", step=GreedyRate),
)
PEERS: Mapping[str, Peer] = {peer.name: peer for peer in _ALL}


def find_peer(name: str) -> Peer:
    """Return the peer of that name."""
    if name not in PEERS:
        raise InputError(f"peer: got {name!r}, expected one of {', '.join(PEERS)}")
    return PEERS[name]


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers whose packages can be imported, in the order of the registry."""
    return tuple(peer for peer in PEERS.values() if peer.installed)
