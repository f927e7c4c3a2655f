"""What a trial is called."""

from types import SimpleNamespace
from typing import Any

from grasp_tune.ray.trial import trial_name


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
