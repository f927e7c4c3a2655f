"""A data set from outside: one class, registered in one place, and configs may name it."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch

from grasp_tune.config import ConfigError, experiment_from, load_experiment, run_experiment
from grasp_tune.config.section import Positive
from grasp_tune.core.errors import InputError
from grasp_tune.data import Data, register
from grasp_tune.data.options import DATASETS, Dataset, Digits


class Stripes(Dataset):
    """Points on a line whose class changes every `width`."""

    loader: ClassVar[str] = f"{__name__}:stripes"
    name: Literal["stripes"] = "stripes"
    """This kind of data."""
    width: Positive = 1.0
    """Length of a stripe."""


def stripes(options: Stripes) -> Data:
    x = torch.linspace(0, 8, 64)[:, None]
    y = (x[:, 0] / options.width).long() % 2
    return Data("stripes", x, y, labels=("even", "odd"))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    monkeypatch.setitem(sys.modules, Stripes.__module__, sys.modules[__name__])
    register(Stripes)
    yield
    del DATASETS["stripes"]


@pytest.mark.usefixtures("registered")
def test_a_data_set_from_outside_is_one_class(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "problem: {dataset: {name: stripes, width: 2}, batch_size: 8}\nbudget: 60"
    )
    experiment = load_experiment(tmp_path / "a.yaml", environment={})
    finished = run_experiment(experiment, tmp_path / "o", progress=False)
    assert finished.result.score < 5
    with pytest.raises(ConfigError, match=r"dataset.width: got 0, expected > 0"):
        experiment_from({"problem": {"dataset": {"name": "stripes", "width": 0}}})
    with pytest.raises(ConfigError, match=r"csv, module:function, stripes .did you mean stripes"):
        experiment_from({"problem": {"dataset": "stripe"}})


def test_a_name_is_given_once() -> None:
    class Other(Dataset):
        loader: ClassVar[str] = "nowhere:nothing"
        name: Literal["digits"] = "digits"

    with pytest.raises(InputError, match="got 'digits', which Digits is called"):
        register(Other)
    assert register(Digits) is Digits
