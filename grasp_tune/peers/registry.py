"""The peers by name: what `compare` and the benchmark run beside the method."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from grasp_tune.core.errors import InputError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.peers import published as by
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

        Raises `MissingExtra` where its package is not installed.
        """
        session = Session(problem, budget, seed)
        start = time.perf_counter()
        answer = self.work(session)
        seconds = time.perf_counter() - start
        return PeerResult(answer.tensors, session.calls, seconds, answer.diverged, answer.note)


_ALL = (
    Peer("dog", "DoG, averaged", SingleRun(by.dog, average=True), "dog"),
    Peer("ldog", "LDoG, averaged", SingleRun(by.ldog, average=True), "dog"),
    Peer("prodigy", "Prodigy", SingleRun(by.prodigy), "prodigyopt"),
    Peer(
        "prodigy-cosine",
        "Prodigy, cosine, as advised",
        SingleRun(by.prodigy_advised, cosine=True),
        "prodigyopt",
    ),
    Peer("dadapt-sgd", "D-Adaptation SGD", SingleRun(by.dadapt_sgd), "dadaptation"),
    Peer("dadapt-adam", "D-Adaptation Adam", SingleRun(by.dadapt_adam), "dadaptation"),
    Peer("cocob", "COCOB", SingleRun(by.cocob), "parameterfree"),
    Peer("kt", "KT", SingleRun(by.kt), "parameterfree"),
    Peer("mechanic", "Mechanic (AdamW)", SingleRun(by.mechanic), "mechanic_pytorch"),
    Peer(
        "schedule-free-adamw",
        "Schedule-free AdamW",
        SingleRun(by.schedule_free_adamw, modes=True),
        "schedulefree",
    ),
    Peer(
        "schedule-free-sgd",
        "Schedule-free SGD",
        SingleRun(by.schedule_free_sgd, modes=True),
        "schedulefree",
    ),
    Peer("adamw", "AdamW, defaults", SingleRun(by.adamw)),
    Peer("sgd", "SGD, defaults", SingleRun(by.sgd)),
    Peer("momentum", "SGD 0.1, momentum 0.9", SingleRun(by.momentum)),
    Peer("range-test", "LR-range test, then SGD", RangeTest()),
    Peer("tpe", "Optuna TPE", Tpe(), "optuna"),
    Peer("asha", "Ray ASHA", Asha(), "ray"),
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
