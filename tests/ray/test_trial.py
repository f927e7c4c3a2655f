"""What a trial is called, and what its problem is given."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grasp_tune as gt
from grasp_tune.ray.trial import grasp_trainable, trial_name


def folder(**words: Any) -> str:
    trial: Any = SimpleNamespace(config={"grasp": words}, trial_id="2b9c1f04")
    return trial_name(trial)


def test_a_folder_is_called_after_its_task() -> None:
    name = folder(task="train-run007", base="sgd", value="1e-05to0.3", budget=120)
    assert name == "train-run007_sgd_1e-05to0.3_120calls_2b9c1f04"
    assert folder(task="select", budget=0) == "select_2b9c1f04"


def test_an_optimizer_may_be_called_anything() -> None:
    name = folder(task="rung0-run001", base="../../../<b>", value="0.1", budget=7)
    assert name == "rung0-run001_..-..-..--b-_0.1_7calls_2b9c1f04"


def test_a_parameter_that_the_function_does_not_take_is_told_before_any_try() -> None:
    def make_problem(config: dict[str, Any], rows: int = 8) -> gt.TorchProblem:
        data = (torch.ones(32 * rows + config["more"], 2),)
        return gt.TorchProblem(
            model=lambda: torch.nn.Linear(2, 1), loss=lambda m, b: m(b[0]).sum(), data=data
        )

    trainable: Any = grasp_trainable(make_problem)
    assert len(trainable.problem({"more": 1}, {"rows": 4}).data[0]) == 129
    with pytest.raises(gt.InputError, match=r"unexpected keyword.*'rwos'; .* gives rwos$"):
        trainable.problem({"more": 1}, {"rwos": 4})
