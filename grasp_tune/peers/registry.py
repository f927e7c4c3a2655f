"""The peers by name: what `compare` and the benchmark run beside the method."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from grasp_tune.core.errors import InputError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.threads import task_threads
from grasp_tune.peers.modern import RIVALS
from grasp_tune.peers.published import Published, mechanic, momentum
from grasp_tune.peers.result import PeerResult
from grasp_tune.peers.session import Answer, Session
from grasp_tune.peers.single import SingleRun
from grasp_tune.peers.tuned import Asha, RangeTest, Tpe


@dataclass(frozen=True, slots=True)
class Peer:
    """Another way to spend the same oracle calls."""

    name: str
    title: str
    work: Callable[[Session], Answer]
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
            answer = self.work(session)
        seconds = time.perf_counter() - start
        return PeerResult(answer.tensors, session.calls, seconds, answer.diverged, answer.note)


_ADVISED = {"safeguard_warmup": True, "use_bias_correction": True}  # where the rate is annealed


def _single(
    name: str, title: str, kind: str, options: Mapping[str, Any] | None = None, **how: bool
) -> Peer:
    """Return one run of `package.Class`."""
    package, _, cls = kind.rpartition(".")
    needed = None if package == "torch.optim" else package
    return Peer(name, title, SingleRun(Published(package, cls, options or {}), **how), needed)


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
        _ADVISED,
        cosine=True,
    ),
    # Defazio, Mishchenko 2023.
    _single("dadapt-sgd", "D-Adaptation SGD", "dadaptation.DAdaptSGD"),
    _single("dadapt-adam", "D-Adaptation Adam", "dadaptation.DAdaptAdam"),
    # Coin betting per coordinate (Orabona, Tommasi 2017), and the Krichevsky-Trofimov bettor
    # (Orabona, Pal 2016), which assumes gradients of norm at most 1.
    _single("cocob", "COCOB", "parameterfree.COCOB"),
    _single("kt", "KT", "parameterfree.KT"),
    Peer("mechanic", "Mechanic (AdamW)", SingleRun(mechanic), "mechanic_pytorch"),
    # Defazio et al. 2024.
    _single(
        "schedule-free-adamw", "Schedule-free AdamW", "schedulefree.AdamWScheduleFree", modes=True
    ),
    _single("schedule-free-sgd", "Schedule-free SGD", "schedulefree.SGDScheduleFree", modes=True),
    # torch's own defaults; SGD's are a step of 0.001 and no momentum.
    _single("adamw", "AdamW, defaults", "torch.optim.AdamW"),
    _single("sgd", "SGD, defaults", "torch.optim.SGD"),
    Peer("momentum", "SGD 0.1, momentum 0.9", SingleRun(momentum)),
    Peer("range-test", "LR-range test, then SGD", RangeTest()),
    Peer("tpe", "Optuna TPE", Tpe(), "optuna"),
    Peer("asha", "Ray ASHA", Asha(), "ray"),
)
PEERS: Mapping[str, Peer] = {
    peer.name: peer for peer in (*_ALL, *(Peer(*rival) for rival in RIVALS))
}


def find_peer(name: str) -> Peer:
    """Return the peer of that name."""
    if name not in PEERS:
        raise InputError(f"peer: got {name!r}, expected one of {', '.join(PEERS)}")
    return PEERS[name]


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers whose packages can be imported, in the order of the registry."""
    return tuple(peer for peer in PEERS.values() if peer.installed)
