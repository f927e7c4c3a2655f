"""A config is checked once and built once."""

from pathlib import Path
from typing import Any

import pytest

from grasp_tune.config import experiment_from, run_experiment
from grasp_tune.config.models import ModelFactory
from grasp_tune.config.schema import Experiment

CONFIG: dict[str, Any] = {
    "problem": {"dataset": "digits", "model": {"name": "mlp", "hidden": [8]}, "batch_size": 16},
    "budget": 120,
}


def test_the_model_is_built_twice_and_the_config_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[None] = []
    make = ModelFactory.__call__
    monkeypatch.setattr(ModelFactory, "__call__", lambda self: built.append(None) or make(self))  # type: ignore[func-returns-value]
    experiment = experiment_from(CONFIG)
    checked: list[None] = []
    monkeypatch.setattr(Experiment, "_conflicts", lambda self: checked.append(None) or iter(()))  # type: ignore[func-returns-value]
    run_experiment(experiment, tmp_path / "o", progress=False)
    # One to check it before anything is written, which holds the result at the end; one to train.
    assert len(built) <= 2
    assert not checked
