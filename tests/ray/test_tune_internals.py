"""What is private of Tune: on the day it is gone, a warning names the public option."""

from types import SimpleNamespace
from typing import Any

import pytest

from grasp_tune.ray import tune_internals
from grasp_tune.ray.tune_internals import TuneRun, no_checkpoint, sees_storage, storage_of


def test_nobody_asks_outside_of_tune() -> None:
    assert TuneRun.asking() is None


def test_a_tune_that_is_built_otherwise_is_told_by_hand(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator: Any = SimpleNamespace(total_samples=1)
    run = TuneRun(generator, controller=SimpleNamespace())
    run.set_up(None, lambda trial: "folder")
    told = [item.getMessage() for item in caplog.records]
    assert len(told) == 2
    assert "pass num_samples=-1" in told[0]
    assert "pass reuse_actors=True" in told[1]
    assert not hasattr(generator, "_total_samples")
    assert (run.trainable, run.storage, run.constants) == (None, None, {})
    assert "ended with an error" in run.error_of("t0")
    assert TuneRun(generator, None).live() is None
    caplog.clear()
    generator.total_samples = tune_internals.TRIALS  # passed by hand
    run.set_up(None, lambda trial: "folder")
    assert "num_samples" not in caplog.text


def test_what_is_missing_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage_of(None) is None
    assert sees_storage(object())
    assert no_checkpoint() is not None
    monkeypatch.setitem(__import__("sys").modules, "ray.train._internal.session", None)
    assert no_checkpoint() is None  # then every trial is saved as Tune does it
