"""The peers by name: the optimizers and tuners that `compare` and the benchmark run.

Packages are imported when they are used, and run with their authors' defaults.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from grasp_tune.core.errors import InputError
from grasp_tune.engine.fused import task_threads
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.segment import Averages
from grasp_tune.extras import need
from grasp_tune.peers.rivals import muon_groups
from grasp_tune.peers.session import PeerResult, Session
from grasp_tune.peers.tuned import asha, range_test, tpe

GAMMA = 8.0  # the exponent that the authors of DoG recommend for averaging
BUDGET = object()  # a placeholder for the budget as the value of an option
_OURS, _MORE = "grasp_tune.peers.rivals", "pytorch_optimizer"


@dataclass(frozen=True, slots=True)
class Peer:
    """A method to compare with: one run of an optimizer, or a function that spends the budget."""

    name: str
    title: str
    kind: str | Callable[[Session], PeerResult]  # the optimizer's `package.Class`, or a function
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the class
    package: str | None = None  # the required package, if `kind` does not name it
    rate: Callable[[float], float] | None = None  # learning rate factor at a share of the budget
    groups: Callable[..., Any] = lambda model, params: params  # makes the parameter groups
    average: bool = False  # return the polynomial average instead of the last iterate
    told: bool = False  # whether the optimizer's `step` takes the loss of the minibatch

    @property
    def needs(self) -> str | None:
        """The package that is required in addition to torch, None if there is none."""
        own = callable(self.kind) or self.kind.startswith(("torch.", _OURS))
        return self.package if own else str(self.kind).rpartition(".")[0]

    @property
    def extra(self) -> str:
        """The extra that installs the required package."""
        root = (self.needs or "").partition(".")[0]
        return root if root in ("optuna", "ray") else "bench"

    @property
    def installed(self) -> bool:
        return self.needs is None or find_spec(self.needs.partition(".")[0]) is not None

    def run(self, problem: TorchProblem, budget: int, seed: int) -> PeerResult:
        """Return the peer's result on the problem with at most `budget` oracle calls.

        It gets as many threads as a task of a sweep on the same model, so that times can be
        compared. Raises `MissingExtra` if its package is not installed.
        """
        if self.needs is not None:
            need(self.needs, self.extra, self.title)  # the time for loading it does not count
        session = Session(problem, budget, seed)
        with task_threads(problem.build(seed)), warnings.catch_warnings():
            # Packages older than the installed torch give harmless warnings in every step.
            warnings.simplefilter("ignore")
            return self.kind(session) if callable(self.kind) else self._single(session, self.kind)

    def _single(self, session: Session, kind: str) -> PeerResult:
        package, _, name = kind.rpartition(".")
        run, budget = session.run(), session.budget
        averages = Averages(run.oracle.model, (GAMMA,)) if self.average else None
        options = {k: float(budget) if v is BUDGET else v for k, v in self.options.items()}
        make = getattr(need(package, self.extra, self.title), name)
        optimizer = make(self.groups(run.oracle.model, run.oracle.parameters), **options)
        getattr(optimizer, "train", bool)()  # schedule-free optimizers have two modes
        rates = [group.get("lr", math.nan) for group in optimizer.param_groups]
        for loss in run.steps(budget):
            for group, value in zip(optimizer.param_groups, rates, strict=True):
                if self.rate is not None:
                    group["lr"] = value * self.rate((run.call - 1) / budget)
            optimizer.step(**({"loss": torch.tensor(loss)} if self.told else {}))
            if averages is not None:
                averages.update()
        getattr(optimizer, "eval", bool)()
        return run.result(tensors=averages.candidate(GAMMA) if averages else None)


def warm_cosine(share: float, warm_up: float = 0.05) -> float:
    """Return the learning rate factor: linear from 0 to 1 in the warm-up, then a cosine to 0."""
    if share < warm_up:
        return share / warm_up
    return 0.5 * (1.0 + math.cos(math.pi * ((share - warm_up) / (1.0 - warm_up))))


cosine = partial(warm_cosine, warm_up=0.0)
_PRODIGY = "prodigyopt.Prodigy"
_LONG = {"t_alpha_beta3": BUDGET}
_MOMENTUM = {"lr": 0.1, "momentum": 0.9}  # as in many published recipes
_ANNEALED = {"safeguard_warmup": True, "use_bias_correction": True}  # Prodigy with a cosine
_WARM = partial(warm_cosine, warm_up=0.02)
# Stochastic rounding is for bfloat16 and would draw random numbers; there are no groups to split.
_PLUS = {"stochastic_rounding": False, "split_groups": False}
# Constant learning rates get a cosine decay if their authors use one.
_ALL = (
    # Distance over gradients (Ivgi, Hinder, Carmon 2023); LDoG has a step size for each tensor.
    Peer("dog", "DoG, averaged", "dog.DoG", average=True),
    Peer("ldog", "LDoG, averaged", "dog.LDoG", average=True),
    # Mishchenko, Defazio 2023.
    Peer("prodigy", "Prodigy", _PRODIGY),
    Peer("prodigy-cosine", "Prodigy, cosine, as advised", _PRODIGY, _ANNEALED, rate=cosine),
    # Defazio, Mishchenko 2023.
    Peer("dadapt-sgd", "D-Adaptation SGD", "dadaptation.DAdaptSGD"),
    Peer("dadapt-adam", "D-Adaptation Adam", "dadaptation.DAdaptAdam"),
    # Coin betting per coordinate (Orabona, Tommasi 2017), and the Krichevsky-Trofimov bettor
    # (Orabona, Pal 2016), which assumes gradients of norm at most 1.
    Peer("cocob", "COCOB", "parameterfree.COCOB"),
    Peer("kt", "KT", "parameterfree.KT"),
    # Cutkosky, Defazio, Mehta 2023.
    Peer("mechanic", "Mechanic (AdamW)", f"{_OURS}.mechanic", package="mechanic_pytorch"),
    # Defazio et al. 2024.
    Peer("schedule-free-adamw", "Schedule-free AdamW", "schedulefree.AdamWScheduleFree"),
    Peer("schedule-free-sgd", "Schedule-free SGD", "schedulefree.SGDScheduleFree"),
    # torch's own defaults; SGD's are a learning rate of 0.001 and no momentum.
    Peer("adamw", "AdamW, defaults", "torch.optim.AdamW"),
    Peer("sgd", "SGD, defaults", "torch.optim.SGD"),
    Peer("momentum", "SGD 0.1, momentum 0.9", "torch.optim.SGD", _MOMENTUM),
    Peer("range-test", "LR-range test, then SGD", range_test),
    Peer("tpe", "Optuna TPE", tpe, package="optuna"),
    Peer("asha", "Ray ASHA", asha, package="ray.tune.schedulers"),
    # The most common choice: torch's other defaults, 5 % warm-up.
    Peer("adamw-cosine", "AdamW, warm-up, cosine", "torch.optim.AdamW", rate=warm_cosine),
    # Dahl et al. 2023: 2 % warm-up.
    Peer("nadamw", "NAdamW, AlgoPerf's constants", f"{_OURS}.NAdamW", rate=_WARM),
    # Defazio 2026.
    Peer("schedule-free-plus", "ScheduleFree+", f"{_OURS}.ScheduleFreePlus", told=True),
    # LoganBooker's package, 2024 to 2026.
    Peer("prodigy-plus", "Prodigy, schedule-free", "prodigyplus.ProdigyPlusScheduleFree", _PLUS),
    # Jordan et al. 2024: Muon on hidden matrices, AdamW on everything else.
    Peer("muon", "Muon, cosine", f"{_MORE}.Muon", groups=muon_groups, rate=cosine),
    # Pagliardini et al. 2024: both of its schedules are as long as the run.
    Peer("ademamix", "AdEMAMix, cosine", f"{_MORE}.AdEMAMix", _LONG, rate=warm_cosine),
    # Schaipp et al. 2024, with a lower bound of 0.
    Peer("momo", "MoMo-Adam", "momo.MomoAdam", told=True),
    # DoWG per coordinate, as in its authors' package (Khaled et al. 2023).
    Peer("dowg", "DoWG", "dowg.CoordinateDoWG"),
    Peer("greedy-lr", "AdamW, GreedyLR", f"{_OURS}.GreedyAdamW", told=True),
)
PEERS: Mapping[str, Peer] = {peer.name: peer for peer in _ALL}


def find_peer(name: str) -> Peer:
    if name not in PEERS:
        raise InputError(f"peer: got {name!r}, expected one of {', '.join(PEERS)}")
    return PEERS[name]


def installed_peers() -> tuple[Peer, ...]:
    return tuple(peer for peer in PEERS.values() if peer.installed)
