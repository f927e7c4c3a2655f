"""How a point is judged."""

from benchmarks.measures import judge
from benchmarks.workloads import WORKLOADS
from grasp_tune.peers import find_peer


def test_judging_does_not_depend_on_the_peer_that_came_before() -> None:
    bundle = WORKLOADS["iris"].bundle(None)
    before = judge(bundle, None, 5)
    find_peer("momentum").run(bundle.problem, 20, seed=5)
    assert judge(bundle, None, 5) == before
