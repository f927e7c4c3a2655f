"""Actors beside a trial share its lanes; without them the bits are the same."""

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.engine.worker import Worker
from grasp_tune.executors import ray as executor
from grasp_tune.executors.ray import run_with_companions
from grasp_tune.runtime.lane_sharing import LaneSharing
from grasp_tune.runtime.store import CheckpointStore
from tests.ray.shop import linear_problem

TASK = TrainTask("t", (Segment(Arm.of(1, "sgd", 0.1), 0, 80, keep=(80,), lanes=4),))


@pytest.mark.usefixtures("ray_session")
def test_a_task_with_companions_has_the_bits_of_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trial = os.getpid()

    def make(name: str, deadly: bool = False) -> Worker:
        calls = [0]

        def die() -> None:
            calls[0] += 1
            if deadly and os.getpid() != trial and calls[0] == 20:
                os.kill(os.getpid(), signal.SIGKILL)

        return Worker(linear_problem(die)(), 0, CheckpointStore(tmp_path / name))

    def done(name: str, **how: Any) -> tuple[Any, bytes]:
        caplog.clear()
        made, needs = make(name), {"CPU": 1.0}
        outcome = run_with_companions(sharing, made, TASK, needs, lambda _: make(name, **how))
        assert ("2 workers a step" in caplog.text) == (name != "alone")
        return outcome, next((tmp_path / name).glob("run001*")).read_bytes()

    monkeypatch.setattr(executor, "GAIN", 0.0)
    caplog.set_level(logging.INFO)
    sharing = LaneSharing()
    alone = done("alone")  # nothing is known yet of its speed
    sharing.learn(1, TASK.calls, 100.0)
    assert done("shared") == alone
    assert "alone" not in caplog.text
    assert done("deadly", deadly=True) == alone
    assert "it is run again, alone" in caplog.text
