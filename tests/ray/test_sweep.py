"""One sweep as Tune's trials see it, without Tune: what a saved state brings back."""

import pytest

import grasp_tune as gt
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.core.spec import SweepSpec
from grasp_tune.ray.sweep import Sweep
from grasp_tune.ray.work import Work


def test_a_probe_that_was_given_up_is_asked_for_again_after_a_restore() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    sweep = Sweep(spec, width_known=True)
    for number in range(ATTEMPTS - 1):
        assert isinstance(sweep.next_work(f"trial{number}"), Work)
        sweep.fail(f"trial{number}", "the network is down")
    assert isinstance(sweep.next_work("last"), Work)
    with pytest.raises(gt.SearchError, match="the network is down"):
        sweep.fail("last", "the network is down")
    again = Sweep(spec, width_known=True)
    again.load(sweep.state())
    work = again.next_work("fresh")
    assert isinstance(work, Work) and work.task.id.startswith("probe")
