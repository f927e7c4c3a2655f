"""How many threads a task may use."""

import pytest
import torch
from torch import nn

from grasp_tune.engine.threads import task_threads
from tests.engine import workbench


@pytest.mark.parametrize(
    ("model", "threads"),
    [
        (nn.Linear(512, 10), 1),
        (workbench.batch_norm(), 1),
        (nn.Linear(1000, 1000), 3),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), 3),
        (nn.LSTM(4, 4), 3),
    ],
)
def test_small_models_of_dense_layers_need_one_thread(model: nn.Module, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with task_threads(model):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyError), task_threads(model):
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
