"""Data from a function of the user's own."""

from pathlib import Path
from typing import Any

import pytest

from grasp_tune.config.errors import EntryPointError
from grasp_tune.config.loader import experiment_from
from grasp_tune.config.section import Section
from grasp_tune.data import Data, load_data

SOURCE = """
import numpy as np, torch
from grasp_tune.config import Data

def pair(rows=4):
    return torch.arange(2.0 * rows).reshape(rows, 2), np.arange(rows) % 2

def four():
    x, y = pair()
    return x, y, x[:1], y[:1]

def whole():
    return Data("mine", torch.ones(3, 2), torch.tensor([0.5, 1.5, 2.5]))

def wrong():
    return 1, 2, 3

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory."""
    name = f"own_data_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])  # as for an installed command
    return name


def load(name: str, **options: Any) -> Data:
    dataset = {"name": name, "options": options} if options else name
    return load_data(experiment_from({"problem": {"dataset": dataset}}).problem.dataset)


def test_functions_may_give_two_or_four_arrays_or_data(own: str) -> None:
    data = load(f"{own}:pair", rows=3)
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.y.tolist() == [0, 1, 0]
    four = load(f"{own}:four")
    assert four.x_test is not None
    assert four.x_test.tolist() == [[0, 1]]
    assert load(f"{own}:whole").spec.classes is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":wrong", r"returned 3 values, expected \(x, y\)"),
        (":gone", "has no 'gone'"),
        (":number", "a int, expected a function"),
        ("x:pair", "whose module cannot be imported"),
    ],
)
def test_functions_that_do_not_fit_are_told(own: str, name: str, message: str) -> None:
    with pytest.raises(EntryPointError, match=f"problem.dataset.name: .*{message}"):
        load(f"{own}{name}")


def test_a_section_of_another_kind_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match=r"expected a problem.dataset section"):
        load_data(Section())
