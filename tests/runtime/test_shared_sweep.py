"""A sweep whose workers are started by others: what a saved state brings back."""

import json

import pytest

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError
from grasp_tune.core.search import ATTEMPTS, Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.shared_sweep import SharedSweep, Work, fault_row


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


def test_failures_outlive_the_driver() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    sweep = SharedSweep(spec, {}, width_known=False)
    for number in range(ATTEMPTS - 1):
        sweep.next(f"trial{number}")
        sweep.gone(f"trial{number}", "the network is down")
    again = SharedSweep(spec, {}, width_known=False)
    again.load(json.loads(json.dumps(sweep.state())))
    again.begin_again(probe_parts=1)
    again.next("last")
    with pytest.raises(gt.SearchError, match="probe failed 3 times"):
        again.gone("last", "the network is down")


def test_only_a_checkpoint_that_the_work_reads_is_made_again() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    task = TrainTask("part", (Segment(Arm.of(1, "sgd", 0.1), 10, 20),))
    works = Work("run", task, spec, {}), Work("run", SELECT, spec, {}, Search(spec))
    for work, key in zip(works, (task.reads[0], "x0"), strict=True):
        assert fault_row(CheckpointError("gone", key), work)["checkpoint"] == key
        assert "full" in fault_row(gt.InputError("a full sentence"), work)["reason"]
        for other in (None, "run009-call20-state"):  # a disk that is full, somebody else's
            with pytest.raises(CheckpointError, match="disk"):
                fault_row(CheckpointError("disk", other), work)
