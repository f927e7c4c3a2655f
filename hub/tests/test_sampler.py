"""Optuna's contract suite against the sampler as this entry exports it."""

from __future__ import annotations

from collections.abc import Callable
import importlib.util
from pathlib import Path
import sys
from types import ModuleType

import grasp_tune as gt
import optuna
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase
from optuna.testing.pytest_samplers import SingleOnlySamplerTestCase
import pytest


def load_entry() -> ModuleType:
    """The folder above as a package, whatever it is called there."""
    path = Path(__file__).parent.parent / "__init__.py"
    spec = importlib.util.spec_from_file_location("grasp_entry", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grasp_entry"] = module
    spec.loader.exec_module(module)
    return module


ENTRY = load_entry()
PLAN = gt.NonConvex().plan(budget=6000, grad_norm=1.3)


# The suite never asks for the parameter, which is worth a warning.
@pytest.mark.filterwarnings("ignore:trial .* without asking for")
class TestGraspSampler(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: ENTRY.GraspSampler(PLAN, "lr")


def test_a_study_runs_the_plan_and_ends() -> None:
    sampler = ENTRY.GraspSampler(PLAN, "lr")
    study = optuna.create_study(sampler=sampler)
    study.optimize(
        lambda trial: sum(1 for _ in ENTRY.grasp_budget(trial)) + sampler.suggest(trial)
    )
    assert [trial.params["lr"] for trial in study.trials] == [cell.value for cell in PLAN.cells]
