"""Hindsight: AdamW with warm-up and cosine at the best of eight learning rates, each with all of T.

This is no competitor, since it makes eight times as many calls, but the goal: the loss after tuning
the learning rate. The best one of a workload has the smallest mean loss over the seeds.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.records import Record
from benchmarks.standings import collect
from grasp_tune.peers import Peer, find_peer
from grasp_tune.peers.registry import warm_cosine

RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LEAST = 7  # number of learning rates that a workload needs


def _peer(rate: float) -> Peer:
    """Return the run at one learning rate; at the default rate it is an ordinary peer."""
    if rate == 1e-3:
        return find_peer("adamw-cosine")
    name = f"adamw-cosine@{rate:g}"
    title, options = f"AdamW {rate:g}, warm-up, cosine", {"lr": rate}
    return Peer(name, title, "torch.optim.AdamW", options, rate=warm_cosine)


SWEEP: Mapping[str, Peer] = {peer.name: peer for peer in map(_peer, RATES)}


def hindsight(records: Iterable[Record], order: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Return loss and method at the best learning rate, for workloads with enough of them."""
    rows = collect(records, order, tuple(SWEEP))
    return {row.workload: (row.best, row.best_method) for row in rows if len(row.entries) >= LEAST}
