"""Running averages against their closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.segment import Averages
from tests.engine import workbench


class Scalar(nn.Module):
    """A model of one number, in float64 unless told otherwise."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=dtype))


def average(values: Iterable[float], gamma: float) -> float:
    model = Scalar()
    averages = Averages(model, (gamma,))
    for value in values:
        model.x.data.fill_(value)
        averages.update()
    return float(averages.candidate(gamma)["param.x"])


def test_three_iterates_by_hand() -> None:
    # gamma 3: weights 4/4, 4/5, 4/6. 10; 10 + 0.8 (20 - 10) = 18; 18 + 2/3 (6 - 18) = 10.
    values = (10.0, 20.0, 6.0)
    found = [average(values[:count], 3.0) for count in (1, 2, 3)]
    assert found == pytest.approx([10.0, 18.0, 10.0])


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), gamma=st.integers(0, 6))
@settings(deadline=None)
def test_weights_are_rising_factorials(values: list[float], gamma: int) -> None:
    # Unrolled, iterate s weighs s (s+1) ... (s+gamma-1), a polynomial of degree gamma.
    weights = [math.prod(range(s, s + gamma)) for s in range(1, len(values) + 1)]
    expected = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert average(values, float(gamma)) == pytest.approx(expected, abs=1e-9)


def test_an_average_is_a_copy_and_kept_in_float32() -> None:
    model = Scalar(torch.bfloat16)
    averages = Averages(model, (0.0,))
    model.x.data.fill_(1.0)
    averages.update()
    model.x.data.fill_(5.0)
    assert float(averages.candidate(0.0)["param.x"]) == 1.0
    for _ in range(1000):
        averages.update()
    tensors: dict[str, Tensor] = {}
    averages.save(tensors, {})
    # 1000 fives more: (1 + 5000) / 1001. In bfloat16 the last 700 would be rounded away.
    assert tensors["average.0.param.x"].tolist() == pytest.approx([5001 / 1001])


def test_an_exponent_that_makes_no_sense_is_refused() -> None:
    for gamma in (-0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="must be finite numbers, at least 0"):
            Averages(Scalar(), (gamma,))


def test_averages_cover_parameters_and_floating_buffers() -> None:
    model = workbench.batch_norm()
    averages = Averages(model, (0.0,))
    mean, tracked = model[1].running_mean, model[1].num_batches_tracked  # type: ignore[index]
    assert isinstance(mean, Tensor)
    assert isinstance(tracked, Tensor)
    for value in (1.0, 2.0, 6.0):
        mean.fill_(value)
        tracked.fill_(int(value))
        averages.update()
    found = averages.candidate(0.0)
    assert found["buffer.1.running_mean"].tolist() == pytest.approx([3.0] * 8)
    assert int(found["buffer.1.num_batches_tracked"]) == 6


def test_averages_go_on_where_they_were_saved() -> None:
    torch.manual_seed(0)
    model = workbench.linear()
    whole, first = Averages(model, (8.0,)), Averages(model, (8.0,))
    tensors: dict[str, Tensor] = {}
    meta: dict[str, str | int | float] = {}
    for turn in range(6):
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        whole.update()
        if turn < 3:
            first.update()
        if turn == 2:
            first.save(tensors, meta)
            second = Averages(model, (8.0,))
            second.load(tensors, meta, "key")
        if turn >= 3:
            second.update()
    assert workbench.same_bits(whole.candidate(8.0), second.candidate(8.0))
    del tensors["average.8.param.bias"]
    with pytest.raises(CheckpointError, match="checkpoint key lacks the average 8"):
        Averages(model, (8.0,)).load(tensors, meta, "key")
