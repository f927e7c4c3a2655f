"""PolynomialAverage against its closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grasp_tune.core.errors import InputError
from grasp_tune.engine.averaging import PolynomialAverage


def test_three_iterates_by_hand() -> None:
    # gamma 3: weights 4/4, 4/5, 4/6. 10; 10 + 0.8 (20 - 10) = 18; 18 + 2/3 (6 - 18) = 10.
    average = PolynomialAverage(3.0)
    seen = []
    for value in (10.0, 20.0, 6.0):
        average.update([torch.tensor([value]), torch.tensor(2 * value)])
        seen.append([tensor.item() for tensor in average.tensors])
    assert [row[0] for row in seen] == pytest.approx([10.0, 18.0, 10.0])
    assert [row[1] for row in seen] == pytest.approx([20.0, 36.0, 20.0])
    assert average.steps == 3


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
@settings(deadline=None)
def test_gamma_zero_is_the_plain_mean(values: list[float]) -> None:
    average = PolynomialAverage(0.0)
    for value in values:
        average.update([torch.tensor(value, dtype=torch.float64)])
    assert average.tensors[0].item() == pytest.approx(math.fsum(values) / len(values), abs=1e-9)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20),
    gamma=st.integers(0, 6),
)
@settings(deadline=None)
def test_weights_are_rising_factorials(values: list[float], gamma: int) -> None:
    # Unrolled, iterate s weighs s (s+1) ... (s+gamma-1), a polynomial of degree gamma.
    weights = [math.prod(range(s, s + gamma)) for s in range(1, len(values) + 1)]
    expected = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    average = PolynomialAverage(float(gamma))
    for value in values:
        average.update([torch.tensor(value, dtype=torch.float64)])
    assert average.tensors[0].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_state_goes_on_bit_for_bit_and_shares_nothing(stop: int) -> None:
    draw = torch.Generator().manual_seed(0)
    iterates = torch.randn(12, 2, 3, generator=draw)
    whole = PolynomialAverage(2.5)
    for iterate in iterates[:stop]:
        whole.update(list(iterate))
    state = whole.state()
    for iterate in iterates[stop:]:
        whole.update(list(iterate))
    for _ in range(2):
        again = PolynomialAverage(2.5, state)
        for iterate in iterates[stop:]:
            again.update(list(iterate))
        assert all(map(torch.equal, again.tensors, whole.tensors))
        assert again.steps == whole.steps == 12


def test_the_average_is_a_copy_and_at_least_float32() -> None:
    point = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    average = PolynomialAverage(0.0)
    average.update([point])
    assert average.tensors[0].dtype == torch.float32
    assert not average.tensors[0].requires_grad
    with torch.no_grad():
        point.fill_(5.0)
    assert average.tensors[0].tolist() == [1.0, 1.0]
    # 1000 fives more: (1 + 5000) / 1001. In bfloat16 the last 700 would be rounded away.
    for _ in range(1000):
        average.update([point])
    assert average.tensors[0].tolist() == pytest.approx([5001 / 1001] * 2)


def test_bad_input_is_refused() -> None:
    for gamma in (-0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="must be a finite number, at least 0"):
            PolynomialAverage(gamma)
    average = PolynomialAverage(1.0)
    with pytest.raises(InputError, match="int64, which has no average"):
        average.update([torch.tensor(3)])
    average.update([torch.ones(2)])
    with pytest.raises(InputError, match="got 2 tensors, but the average has 1"):
        average.update([torch.ones(2), torch.ones(2)])
