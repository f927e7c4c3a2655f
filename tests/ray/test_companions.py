"""Actors beside a trial share its lanes; without them the bits are the same."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as arrow

import grasp_tune as gt
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, Segment, TrainTask
from grasp_tune.executors import ray as executor
from grasp_tune.executors.ray import Companions
from grasp_tune.runtime.shared_storage import SharedStorage
from grasp_tune.runtime.shared_sweep import Work
from grasp_tune.runtime.shared_worker import SharedWorker
from tests.ray.shop import linear_problem

TASK = TrainTask("t", (Segment(Arm.of(1, "sgd", 0.1), 0, 80, keep=(80,), lanes=4),))
WORK = Work("r", TASK, SweepSpec(gt.NonConvex(), 100), {})


@pytest.mark.usefixtures("ray_session")
def test_a_task_with_companions_has_the_bits_of_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trial = os.getpid()

    def make(name: str, deadly: bool = False) -> tuple[SharedWorker, None]:
        calls = [0]

        def die() -> None:
            calls[0] += 1
            if deadly and os.getpid() != trial and calls[0] == 20:
                os.kill(os.getpid(), signal.SIGKILL)

        storage = SharedStorage(arrow.LocalFileSystem(), str(tmp_path / name / "run"))
        return SharedWorker(linear_problem(die)(), storage, WORK), None

    def done(name: str, **how: Any) -> tuple[Any, bytes]:
        worker, _ = make(name)
        with group.seat(TASK, {"CPU": 1.0}, lambda: make(name, **how)) as seat:
            assert (seat is None) == (name == "alone")
            row = worker.perform(WORK, seat)
        saved = next((tmp_path / name / "run/checkpoints").glob("run001*")).read_bytes()
        return {key: row[key] for key in ("status", "train_loss")}, saved

    monkeypatch.setattr(executor, "GAIN", 0.0)
    group = Companions()
    alone = done("alone")  # nothing is known yet of its speed
    group.sharing.learn(1, TASK.calls, 100.0)
    assert done("shared") == alone
    assert not caplog.records
    assert done("deadly", deadly=True) == alone
    assert "it is run again, alone" in caplog.text
