"""Tune without its CSV, JSON and TensorBoard files, unless a test wants them."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    # It misses the files that nobody wanted.
    log = logging.getLogger("ray.tune.analysis.experiment_analysis")
    monkeypatch.setattr(log, "level", logging.ERROR)
