"""Adam that measures its own distance: the equations step by step, units, and its state."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.method.errors import InputError
from grasp_tune.training.growing import GrowingAdam
from grasp_tune.training.preconditioner import Coordinates

STEPS = 60
TARGET = torch.tensor([3.0, -2.0, 0.7, 5.0], dtype=torch.float64)
CURVATURE = torch.tensor([2.0, 0.3, 7.0, 1.1], dtype=torch.float64)
PEAKS = torch.tensor([4.0, 0.5, 1.3, 2.0], dtype=torch.float64)

Oracle = Callable[[Tensor], tuple[float, Tensor]]  # the loss and the gradient at a point


def quadratic(unit: float = 1.0, scale: float = 1.0, seed: int = 4) -> Oracle:
    """A noisy quadratic whose parameters count in `unit`s, and its loss in `scale`s."""
    draws = torch.Generator().manual_seed(seed)

    def oracle(point: Tensor) -> tuple[float, Tensor]:
        noise = 0.2 * torch.randn(4, generator=draws, dtype=torch.float64)
        apart = point / unit - TARGET
        loss = 0.5 * (CURVATURE * apart * apart).sum() + 0.1
        return float(scale * loss), scale * (CURVATURE * apart + noise) / unit

    return oracle


def advance(point: nn.Parameter, optimizer: GrowingAdam, oracle: Oracle) -> Tensor:
    """The point after one step."""

    def closure() -> float:
        loss, point.grad = oracle(point.detach())
        return loss

    optimizer.step(closure)
    return point.detach().clone()


def path(oracle: Oracle, steps: int = STEPS, **options: object) -> tuple[list[Tensor], list[float]]:
    """The points of a run from 0, and the distance after each step."""
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = GrowingAdam([point], **options)  # type: ignore[arg-type]
    points, distances = [], []
    for _ in range(steps):
        points.append(advance(point, optimizer, oracle))
        distances.append(optimizer.distance)
    return points, distances


def halves(power: float = 0.5) -> Coordinates:
    return Coordinates(power, [PEAKS.clone()], 1.5)


def twin(oracle: Oracle, lr: float, power: float) -> Iterator[tuple[list[float], float]]:
    """The same run with the sums as the docstring prints them, number by number."""
    memory, size = math.sqrt(0.999), range(4)
    x, mean, square = [0.0] * 4, [0.0] * 4, [0.0] * 4
    peaks, distance = PEAKS.tolist(), 0.0
    seen: list[tuple[float, float, list[float]]] = []  # weight, <g, x0 - x>, g
    for count in range(1, STEPS + 1):
        loss, gradient = oracle(torch.tensor(x, dtype=torch.float64))
        g = gradient.tolist()
        peaks = [max(peaks[i], abs(g[i])) for i in size]
        c = [max(peaks[i] / 1.5, 1e-2) ** -power for i in size]
        if count == 1:
            distance = 1e-3 * abs(loss) / sum(c[i] * abs(g[i]) for i in size)
        seen.append((lr * distance**2, sum(g[i] * (0.0 - x[i]) for i in size), g))
        weights = [w * memory ** (count - 1 - k) for k, (w, _, _) in enumerate(seen)]
        gained = sum(w * inner for w, (_, inner, _) in zip(weights, seen, strict=True))
        drift = [sum(w * s[2][i] for w, s in zip(weights, seen, strict=True)) for i in size]
        distance = max(distance, gained / sum(c[i] * abs(drift[i]) for i in size))
        fresh = count**-0.8
        for i in size:
            mean[i] = 0.9 * mean[i] + 0.1 * g[i]
            square[i] = (1.0 - fresh) * square[i] + fresh * g[i] ** 2
            move = mean[i] / (1.0 - 0.9**count) / math.sqrt(square[i])
            x[i] -= lr * distance * c[i] * max(-1.0, min(1.0, move))
        yield list(x), distance


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("lr", [1.0, 0.6])
def test_each_step_is_that_of_the_equations(lr: float, power: float) -> None:
    points, distances = path(quadratic(), lr=lr, coordinates=halves(power))
    slow = list(twin(quadratic(), lr, power))
    for point, distance, (expected, measured) in zip(points, distances, slow, strict=True):
        assert point.tolist() == pytest.approx(expected, rel=1e-9)
        assert distance == pytest.approx(measured, rel=1e-9)
    assert distances[-1] > 10.0 * distances[0]  # it has grown, so the sums have been rescaled


def test_the_first_step_by_hand() -> None:
    # Loss 8 and gradient (3, -1): 8 / 1000 / (3 + 1) = 0.002. x0 - x is 0, so nothing is measured
    # yet, and m / sqrt(v) is the gradient's sign: x = 0 - 0.5 * 0.002 * (1, -1).
    point = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = GrowingAdam([point], lr=0.5)
    found = advance(point, optimizer, lambda _: (8.0, torch.tensor([3.0, -1.0]).double()))
    assert optimizer.distance == pytest.approx(0.002)
    assert found.tolist() == pytest.approx([-0.001, 0.001])


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_never_shrinks_and_stays_below_the_true_one(seed: int) -> None:
    _, distances = path(quadratic(seed=seed), steps=400)
    assert distances == sorted(distances)
    assert distances[-1] < 2.0 * 5.0  # the farthest coordinate; noise may add to a lower bound


@pytest.mark.parametrize("scale", [2.0**-20, 0.5, 2.0**20])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    points, distances = path(quadratic(scale=scale))
    expected, measured = path(quadratic())
    for point, other in zip(points, expected, strict=True):
        assert torch.allclose(point, other, rtol=1e-9, atol=0.0)
    assert distances == pytest.approx(measured, rel=1e-9)


@pytest.mark.parametrize("unit", [2.0**-12, 4.0, 2.0**12])
def test_units_of_the_parameters_are_units_of_the_distance(unit: float) -> None:
    points, distances = path(quadratic(unit=unit))
    expected, measured = path(quadratic())
    for point, other in zip(points, expected, strict=True):
        assert torch.allclose(point / unit, other, rtol=1e-9, atol=0.0)
    assert [distance / unit for distance in distances] == pytest.approx(measured, rel=1e-9)


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_a_state_goes_on_bit_for_bit_and_shares_nothing(power: float) -> None:
    oracle = quadratic()
    whole = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    one = GrowingAdam([whole], coordinates=halves(power))
    for _ in range(15):
        advance(whole, one, oracle)
    again = nn.Parameter(whole.detach().clone())
    other = GrowingAdam([again], coordinates=halves(power))
    other.load_state_dict(one.state_dict())
    first, second = quadratic(seed=9), quadratic(seed=9)
    for _ in range(20):
        assert torch.equal(advance(whole, one, first), advance(again, other, second))
        assert one.distance == other.distance


def test_zero_gradients_move_nothing_and_leave_the_distance_to_the_first_that_is_not() -> None:
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = GrowingAdam([point])
    for _ in range(3):
        silent = advance(point, optimizer, lambda _: (7.0, torch.zeros(4, dtype=torch.float64)))
        assert torch.equal(silent, torch.zeros(4, dtype=torch.float64))
        assert optimizer.distance == 0.0
    loss, gradient = quadratic()(point.detach())
    advance(point, optimizer, lambda _: (loss, gradient))
    assert optimizer.distance == pytest.approx(1e-3 * loss / float(gradient.abs().sum()))
    before = optimizer.distance
    after = advance(point, optimizer, lambda _: (7.0, torch.zeros(4, dtype=torch.float64)))
    assert optimizer.distance == before and bool(torch.isfinite(after).all())


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 0.0])
def test_a_loss_that_gives_no_scale_does_no_harm(loss: float) -> None:
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer, oracle = GrowingAdam([point]), quadratic()
    for _ in range(200):
        advance(point, optimizer, lambda at: (loss, oracle(at)[1]))
        assert 0.0 < optimizer.distance < math.inf
    assert float((point.detach() - TARGET).abs().max()) < float(TARGET.abs().max())


def test_without_a_closure_the_gradient_at_hand_is_used() -> None:
    point = nn.Parameter(torch.zeros(4))
    optimizer = GrowingAdam([point])
    assert optimizer.step() is None
    assert torch.equal(point.detach(), torch.zeros(4))  # no gradient, no step
    point.grad = torch.tensor([1.0, -1.0, 2.0, 0.0])
    optimizer.step()
    assert optimizer.distance == pytest.approx(1e-3 / 4.0)


def test_the_multipliers_act_where_the_power_says_so() -> None:
    # Peaks 4 and 0.25 in units of 1: multipliers 0.5 and 2. Loss 3, g = (1, 0.125):
    # 0.003 / (0.5 * 1 + 2 * 0.125) = 0.004, and x = -0.004 * (0.5, 2).
    point = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    peaks = Coordinates(0.5, [torch.tensor([4.0, 0.25], dtype=torch.float64)], 1.0)
    optimizer = GrowingAdam([point], coordinates=peaks)
    found = advance(point, optimizer, lambda _: (3.0, torch.tensor([1.0, 0.125]).double()))
    assert optimizer.distance == pytest.approx(0.004)
    assert found.tolist() == pytest.approx([-0.002, -0.008])


def test_two_groups_are_refused() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    with pytest.raises(InputError, match="single group"):
        GrowingAdam(groups)


def test_a_rate_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match="lr is 0"):
        GrowingAdam([nn.Parameter(torch.zeros(1))], lr=0.0)
