"""Hindsight: AdamW with warm-up and cosine at the best of eight learning rates, each with all of T.

Not a competitor, since it has eight times the calls, but the line to reach: what a user gets who
tunes the one number that matters and pays for it. The best rate of a workload is that of the
smallest mean loss over the seeds.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.records import Record
from benchmarks.standings import collect
from grasp_tune.peers import Peer, find_peer
from grasp_tune.peers.registry import warm_cosine

RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LEAST = 7  # rates that a workload needs


def _peer(rate: float) -> Peer:
    """Return the run at one rate; at the default rate it is the peer of that name."""
    if rate == 1e-3:
        return find_peer("adamw-cosine")
    name = f"adamw-cosine@{rate:g}"
    title, options = f"AdamW {rate:g}, warm-up, cosine", {"lr": rate}
    return Peer(name, title, "torch.optim.AdamW", options, rate=warm_cosine)


SWEEP: Mapping[str, Peer] = {peer.name: peer for peer in map(_peer, RATES)}


def hindsight(records: Iterable[Record], order: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Return the loss and the method at the best rate, for workloads with enough of them."""
    rows = collect(records, order, tuple(SWEEP))
    return {row.workload: (row.best, row.best_method) for row in rows if len(row.entries) >= LEAST}
