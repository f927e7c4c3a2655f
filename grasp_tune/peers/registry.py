"""The peers by name: what `compare` and the benchmark run beside the method.

Packages are imported when they are used, and run at their authors' defaults.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import AdamW

from grasp_tune.core.errors import InputError
from grasp_tune.engine.fused import task_threads
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.segment import Averages
from grasp_tune.extras import need
from grasp_tune.peers.rivals import muon_groups
from grasp_tune.peers.session import PeerResult, Run, Session
from grasp_tune.peers.tuned import asha, range_test, tpe

GAMMA = 8.0  # the exponent that the authors of DoG recommend for its averages
_OURS, _MORE = "grasp_tune.peers.rivals", "pytorch_optimizer"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another way to spend the same oracle calls."""

    name: str
    title: str
    work: Callable[[Session], PeerResult]
    package: str | None = None  # what has to be installed beside torch

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None

    def run(self, problem: TorchProblem, budget: int, seed: int) -> PeerResult:
        """Return what the peer makes of the problem with at most `budget` oracle calls.

        It gets as many threads as a task of a sweep on the same model, so that times compare.
        Raises `MissingExtra` where its package is not installed.
        """
        session, start = Session(problem, budget, seed), time.perf_counter()
        with task_threads(problem.build(seed)):
            result = self.work(session)
        return replace(result, calls=session.calls, seconds=time.perf_counter() - start)


def packaged(kind: str, *arguments: Any, **options: Any) -> Any:
    """Return what `package.name` makes of the arguments."""
    package, _, name = kind.rpartition(".")
    return getattr(need(package, "bench", "this peer"), name)(*arguments, **options)


def single_run(
    make: Callable[[Run, int], Any],
    *,
    average: bool = False,
    rate: Callable[[float], float] | None = None,
    told: bool = False,
) -> Callable[[Session], PeerResult]:
    """Return what spends all of T with one optimizer.

    make: makes the optimizer for a run and a budget.
    average: return the polynomial average instead of the last iterate.
    rate: the factor of the learning rate after a share of the budget.
    told: the optimizer's step takes the loss of the minibatch.
    """

    def work(session: Session) -> PeerResult:
        run, budget = session.run(), session.budget
        averages = Averages(run.oracle.model, (GAMMA,)) if average else None

        def step(optimizer: Any, loss: float) -> None:
            optimizer.step(**({"loss": torch.tensor(loss)} if told else {}))
            if averages is not None:
                averages.update()

        with warnings.catch_warnings():
            # Packages older than the present torch warn in every step, of nothing that matters.
            warnings.simplefilter("ignore")
            optimizer = make(run, budget)
            getattr(optimizer, "train", bool)()  # schedule-free ones return an average
            run.advance(optimizer, budget, rate and (lambda call: rate(call / budget)), step)
            getattr(optimizer, "eval", bool)()
        return run.result(tensors=averages.candidate(GAMMA) if averages else None)

    return work


def warm_cosine(share: float, warm_up: float = 0.05) -> float:
    """Return the factor of the rate: linear from 0 to 1 during the warm-up, then a cosine to 0."""
    if share < warm_up:
        return share / warm_up
    return 0.5 * (1.0 + math.cos(math.pi * ((share - warm_up) / (1.0 - warm_up))))


cosine = partial(warm_cosine, warm_up=0.0)


def adamw_cosine(rate: float) -> Callable[[Session], PeerResult]:
    """AdamW with torch's other defaults, 5 % warm-up and a cosine: what most people run."""
    return single_run(lambda run, _: AdamW(run.oracle.parameters, lr=rate), rate=warm_cosine)


def _mechanic(run: Run, budget: int) -> Any:
    """Mechanic around AdamW (Cutkosky, Defazio, Mehta 2023), whose own rate is then 1."""
    kind = packaged("mechanic_pytorch.mechanize", AdamW)
    return kind(run.oracle.parameters, lr=1.0, weight_decay=0.0)


def _muon(run: Run, budget: int) -> Any:
    """Muon on hidden matrices, AdamW on all else (Jordan et al. 2024)."""
    return packaged(f"{_MORE}.Muon", muon_groups(run.oracle.model, run.oracle.parameters))


def _ademamix(run: Run, budget: int) -> Any:
    """AdEMAMix (Pagliardini et al. 2024), its two schedules as long as the run."""
    return packaged(f"{_MORE}.AdEMAMix", run.oracle.parameters, t_alpha_beta3=float(budget))


def _single(name: str, title: str, kind: str, options: Any = (), **how: Any) -> Peer:
    """Return one run of `package.Class`, with options of the class where they are given."""
    package = kind.rpartition(".")[0]
    needed = None if package in ("torch.optim", _OURS) else package
    work = single_run(lambda run, _: packaged(kind, run.oracle.parameters, **dict(options)), **how)
    return Peer(name, title, work, needed)


_PRODIGY = "prodigyopt.Prodigy"
_MOMENTUM = {"lr": 0.1, "momentum": 0.9}  # of many published recipes
_ANNEALED = {"safeguard_warmup": True, "use_bias_correction": True}  # Prodigy with a cosine
_WARM = partial(warm_cosine, warm_up=0.02)
# Random rounding is for bfloat16 and would draw random numbers; groups there are none.
_PLUS = {"stochastic_rounding": False, "split_groups": False}
# Rates that are constant by default are brought down along a cosine where their authors do so.
_ALL = (
    # Distance over gradients (Ivgi, Hinder, Carmon 2023); LDoG has a step for every tensor.
    _single("dog", "DoG, averaged", "dog.DoG", average=True),
    _single("ldog", "LDoG, averaged", "dog.LDoG", average=True),
    # Mishchenko, Defazio 2023.
    _single("prodigy", "Prodigy", _PRODIGY),
    _single("prodigy-cosine", "Prodigy, cosine, as advised", _PRODIGY, _ANNEALED, rate=cosine),
    # Defazio, Mishchenko 2023.
    _single("dadapt-sgd", "D-Adaptation SGD", "dadaptation.DAdaptSGD"),
    _single("dadapt-adam", "D-Adaptation Adam", "dadaptation.DAdaptAdam"),
    # Coin betting per coordinate (Orabona, Tommasi 2017), and the Krichevsky-Trofimov bettor
    # (Orabona, Pal 2016), which assumes gradients of norm at most 1.
    _single("cocob", "COCOB", "parameterfree.COCOB"),
    _single("kt", "KT", "parameterfree.KT"),
    Peer("mechanic", "Mechanic (AdamW)", single_run(_mechanic), "mechanic_pytorch"),
    # Defazio et al. 2024.
    _single("schedule-free-adamw", "Schedule-free AdamW", "schedulefree.AdamWScheduleFree"),
    _single("schedule-free-sgd", "Schedule-free SGD", "schedulefree.SGDScheduleFree"),
    # torch's own defaults; SGD's are a step of 0.001 and no momentum.
    _single("adamw", "AdamW, defaults", "torch.optim.AdamW"),
    _single("sgd", "SGD, defaults", "torch.optim.SGD"),
    _single("momentum", "SGD 0.1, momentum 0.9", "torch.optim.SGD", _MOMENTUM),
    Peer("range-test", "LR-range test, then SGD", range_test),
    Peer("tpe", "Optuna TPE", tpe, "optuna"),
    Peer("asha", "Ray ASHA", asha, "ray"),
    Peer("adamw-cosine", "AdamW, warm-up, cosine", adamw_cosine(1e-3)),
    # Dahl et al. 2023: 2 % warm-up.
    _single("nadamw", "NAdamW, AlgoPerf's constants", f"{_OURS}.NAdamW", rate=_WARM),
    # Defazio 2026.
    _single("schedule-free-plus", "ScheduleFree+", f"{_OURS}.ScheduleFreePlus", told=True),
    # LoganBooker's package, 2024 to 2026.
    _single("prodigy-plus", "Prodigy, schedule-free", "prodigyplus.ProdigyPlusScheduleFree", _PLUS),
    Peer("muon", "Muon, cosine", single_run(_muon, rate=cosine), _MORE),
    Peer("ademamix", "AdEMAMix, cosine", single_run(_ademamix, rate=warm_cosine), _MORE),
    # Schaipp et al. 2024, a lower bound of 0.
    _single("momo", "MoMo-Adam", "momo.MomoAdam", told=True),
    # DoWG for each coordinate, as its authors' package has it (Khaled et al. 2023).
    _single("dowg", "DoWG", "dowg.CoordinateDoWG"),
    _single("greedy-lr", "AdamW, GreedyLR", f"{_OURS}.GreedyAdamW", told=True),
)
PEERS: Mapping[str, Peer] = {peer.name: peer for peer in _ALL}


def find_peer(name: str) -> Peer:
    if name not in PEERS:
        raise InputError(f"peer: got {name!r}, expected one of {', '.join(PEERS)}")
    return PEERS[name]


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers whose packages can be imported, in the order of the registry."""
    return tuple(peer for peer in PEERS.values() if peer.installed)
