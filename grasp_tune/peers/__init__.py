"""Peers: other optimizers and tuners with the same number of oracle calls, for comparisons.

from grasp_tune.peers import find_peer
result = find_peer("dog").run(problem, budget=10_000, seed=0)
"""

from grasp_tune.peers.registry import PEERS, Peer, find_peer, installed_peers
from grasp_tune.peers.session import PeerResult

__all__ = ["PEERS", "Peer", "PeerResult", "find_peer", "installed_peers"]
