"""How many threads a task may use."""

import pytest
import torch
from torch import nn

from grasp_tune.engine.threads import light, task_threads
from tests.engine import workbench


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(512, 10), True),
        (workbench.batch_norm(), True),
        (nn.Linear(1000, 1000), False),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), False),
        (nn.LSTM(4, 4), False),
    ],
)
def test_small_models_of_dense_layers_are_light(model: nn.Module, expected: bool) -> None:
    assert light(model) is expected


def test_threads_are_set_for_the_task_and_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with task_threads(nn.Linear(4, 4)):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with task_threads(nn.Conv2d(1, 1, 3)):
            assert torch.get_num_threads() == 3
        with pytest.raises(KeyError), task_threads(nn.Linear(4, 4)):
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
