"""A sweep whose workers are started by others: what a saved state brings back."""

import pytest

import grasp_tune as gt
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.core.spec import SweepSpec
from grasp_tune.runtime.shared_sweep import SharedSweep, Work


def test_a_probe_that_was_given_up_is_asked_for_again_after_a_restore() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    sweep = SharedSweep(spec, {}, width_known=True)
    for number in range(ATTEMPTS - 1):
        assert isinstance(sweep.next(f"trial{number}"), Work)
        sweep.gone(f"trial{number}", "the network is down")
    assert isinstance(sweep.next("last"), Work)
    with pytest.raises(gt.SearchError, match="the network is down"):
        sweep.gone("last", "the network is down")
    again = SharedSweep(spec, {}, width_known=True)
    again.load(sweep.state())
    work = again.next("fresh")
    assert isinstance(work, Work) and work.task.id.startswith("probe")
