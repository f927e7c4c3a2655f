"""Adam that measures its own distance: the equations step by step, units, and its state."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.distance_adam import DistanceAdam
from grasp_tune.optimizers.preconditioner import Coordinates

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


def advance(point: nn.Parameter, optimizer: DistanceAdam, oracle: Oracle) -> Tensor:
    """The point after one step."""

    def closure() -> float:
        loss, point.grad = oracle(point.detach())
        return loss

    optimizer.step(closure)
    return point.detach().clone()


def path(oracle: Oracle, steps: int = STEPS, **options: object) -> tuple[list[Tensor], list[float]]:
    """The points of a run from 0, and the distance after each step."""
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = DistanceAdam([point], **options)  # type: ignore[arg-type]
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
    peaks, distance, count, seeking, doubt = PEAKS.tolist(), 0.0, 0, True, False
    tried: list[tuple[float, float]] = []  # loss, and the distance that led there
    seen: list[tuple[float, float, list[float]]] = []  # weight, <g, x0 - x>, g
    for _ in range(STEPS):
        loss, gradient = oracle(torch.tensor(x, dtype=torch.float64))
        g = gradient.tolist()
        if not seeking:
            peaks = [max(peaks[i], abs(g[i])) for i in size]
        c = [max(peaks[i] / 1.5, 1e-2) ** -power for i in size]
        if seeking and not tried:
            distance = 1e-2 * abs(loss) / sum(c[i] * abs(g[i]) for i in size)
            tried.append((loss, distance))
        elif seeking and loss <= max(tried[0][0], 1.5 * min(tried)[0]) and count < 10:
            tried.append((loss, distance))
            distance, doubt = 2.0 * distance, False
        elif seeking and not doubt and count < 10:
            doubt = True
            yield list(x), distance
            continue
        elif seeking:
            distance, seeking, count = min(tried)[1] / 4.0, False, 0
            x, mean, square = [0.0] * 4, [0.0] * 4, [0.0] * 4
            yield list(x), distance
            continue
        else:
            seen.append((lr * distance**2, sum(g[i] * (0.0 - x[i]) for i in size), g))
            weights = [w * memory ** (count - k) for k, (w, _, _) in enumerate(seen)]
            gained = sum(w * inner for w, (_, inner, _) in zip(weights, seen, strict=True))
            drift = [sum(w * s[2][i] for w, s in zip(weights, seen, strict=True)) for i in size]
            distance = max(distance, gained / sum(c[i] * abs(drift[i]) for i in size))
        count += 1
        fresh = count**-0.8
        for i in size:
            mean[i] = 0.9 * mean[i] + 0.1 * g[i]
            square[i] = (1.0 - fresh) * square[i] + fresh * g[i] ** 2
            move = mean[i] / (1.0 - 0.9**count) / math.sqrt(square[i])
            x[i] -= (1.0 if seeking else lr) * distance * c[i] * max(-1.0, min(1.0, move))
        yield list(x), distance


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("lr", [1.0, 0.6])
def test_each_step_is_that_of_the_equations(lr: float, power: float) -> None:
    points, distances = path(quadratic(), lr=lr, coordinates=halves(power))
    slow = list(twin(quadratic(), lr, power))
    for point, distance, (expected, measured) in zip(points, distances, slow, strict=True):
        assert point.tolist() == pytest.approx(expected, rel=1e-9)
        assert distance == pytest.approx(measured, rel=1e-9)
    back = next(at for at, point in enumerate(points) if not point.any())
    assert 5 < back <= 10  # it has searched, and has gone back
    assert distances[-1] > 1.5 * distances[back]  # and has grown, so the sums have been rescaled


def test_the_first_step_by_hand() -> None:
    # Loss 8 and gradient (3, -1): 8 / 100 / (3 + 1) = 0.02, and m / sqrt(v) is the gradient's
    # sign: x = 0 - 0.02 * (1, -1), whatever the rate is.
    point = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = DistanceAdam([point], lr=0.5)
    found = advance(point, optimizer, lambda _: (8.0, torch.tensor([3.0, -1.0]).double()))
    assert optimizer.distance == pytest.approx(0.02)
    assert found.tolist() == pytest.approx([-0.02, 0.02])


def feed(losses: list[float]) -> tuple[list[float], nn.Parameter]:
    """The distance after each of these losses; the gradient is 1 all along."""
    point = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer, found = DistanceAdam([point]), list[float]()
    for loss in losses:
        advance(point, optimizer, lambda _, loss=loss: (loss, torch.ones(1).double()))  # type: ignore[misc]
        found.append(optimizer.distance)
    return found, point


def test_the_first_distance_is_a_part_of_the_one_with_the_lowest_loss() -> None:
    # 100 / 100 / 1 = 1 leads to 60, 2 leads to 80, 4 leads to 50, 8 leads to 99: above 1.5 * 50
    # but not above the start; 16 leads to 101, twice. The lowest is at 4, and 4 / 4 = 1.
    found, point = feed([100.0, 60.0, 80.0, 50.0, 99.0, 101.0, 101.0])
    assert found == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 1.0]
    assert point.item() == 0.0  # back where it began


def test_a_rise_above_the_start_that_may_be_noise_does_not_end_the_search() -> None:
    # 150 is the bound while 100 is the lowest.
    found, _ = feed([100.0, 130.0, 149.0, 151.0, 152.0])
    assert found == [1.0, 2.0, 4.0, 4.0, 0.25]


def test_one_high_loss_is_asked_again_at_the_same_point() -> None:
    # 900 at the distance 2 was chance: there it is 40, the lowest, and the search goes on to 8.
    found, point = feed([100.0, 60.0, 900.0, 40.0, 50.0])
    assert found == [1.0, 2.0, 2.0, 4.0, 8.0]
    assert point.item() == pytest.approx(-(1.0 + 2.0 + 4.0 + 8.0))  # the doubt moved nothing
    found, _ = feed([100.0, 60.0, 900.0, 40.0, 900.0, 900.0])
    assert found[-1] == 2.0 / 4.0


def test_a_loss_that_never_rises_ends_the_search_too() -> None:
    # The lowest loss is the last that counts, after the step of 2 ** 8.
    found, point = feed([100.0 / (1 + at) for at in range(11)])
    assert found[-2] == 2.0**9 and found[-1] == 2.0**8 / 4.0
    assert point.item() == 0.0


def promises(mean: float, losses: list[float]) -> tuple[DistanceAdam, list[float]]:
    """The optimizer after these losses, and what each step but the last promised, per coordinate.

    Gradients are independent normal numbers around `mean` in each of 40,000 coordinates.
    """
    draws, size = torch.Generator().manual_seed(3), 40_000
    point = nn.Parameter(torch.zeros(size))
    optimizer, found = DistanceAdam([point]), list[float]()
    for loss in losses:
        gradient = mean + torch.randn(size, generator=draws)
        advance(point, optimizer, lambda _, pair=(loss, gradient): pair)  # type: ignore[misc]
        group = optimizer.param_groups[0]
        found.append(group["promise"] / optimizer.distance / size)
    return optimizer, found[:-1]


@pytest.mark.parametrize("mean", [0.0, 0.1, 0.5])
def test_noise_promises_nothing(mean: float) -> None:
    # Gradients whose mean is mu and variance 1 have a root mean square of sqrt(1 + mu ** 2), and a
    # step along mu divided by that gains mu ** 2 / sqrt(1 + mu ** 2).
    _, found = promises(mean, [100.0] * 10)
    assert found[-1] == pytest.approx(mean**2 / math.sqrt(1.0 + mean**2), abs=0.03)


def test_where_gradients_are_noise_the_search_goes_on_and_follows_what_they_promise() -> None:
    # 1 / 32,000 (the mean size of a normal number is 0.8) for the first step; after 12 doublings
    # the loss rises. Its lowest value was luck at the third step; the promise doubles every time.
    optimizer, _ = promises(0.05, [100.0, 99.0, 98.0, *[99.5] * 10, 200.0])
    first = optimizer.param_groups[0]["valley"] / 2.0
    assert first == pytest.approx(1.0 / 32_000, rel=0.02)
    assert optimizer.distance == pytest.approx(first * 2.0**11 / 2.0)


def test_a_search_among_noise_ends_too() -> None:
    optimizer, _ = promises(0.0, [100.0] * 17)
    assert not optimizer.param_groups[0]["seeking"]


@pytest.mark.parametrize("last", [math.nan, math.inf])
def test_a_search_that_ends_beyond_all_numbers_goes_back_as_well(last: float) -> None:
    found, point = feed([100.0, 60.0, last])
    assert found[-1] == 0.25 and point.item() == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_never_shrinks_and_stays_below_the_true_one(seed: int) -> None:
    points, distances = path(quadratic(seed=seed), steps=400)
    back = next(at for at, point in enumerate(points) if not point.any())
    assert distances[back:] == sorted(distances[back:])
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
    one = DistanceAdam([whole], coordinates=halves(power))
    for _ in range(15):
        advance(whole, one, oracle)
    again = nn.Parameter(whole.detach().clone())
    other = DistanceAdam([again], coordinates=halves(power))
    other.load_state_dict(one.state_dict())
    first, second = quadratic(seed=9), quadratic(seed=9)
    for _ in range(20):
        assert torch.equal(advance(whole, one, first), advance(again, other, second))
        assert one.distance == other.distance


def test_zero_gradients_move_nothing_and_leave_the_distance_to_the_first_that_is_not() -> None:
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = DistanceAdam([point])
    for _ in range(3):
        silent = advance(point, optimizer, lambda _: (7.0, torch.zeros(4, dtype=torch.float64)))
        assert torch.equal(silent, torch.zeros(4, dtype=torch.float64))
        assert optimizer.distance == 0.0
    loss, gradient = quadratic()(point.detach())
    advance(point, optimizer, lambda _: (loss, gradient))
    assert optimizer.distance == pytest.approx(1e-2 * loss / float(gradient.abs().sum()))
    after = advance(point, optimizer, lambda _: (7.0, torch.zeros(4, dtype=torch.float64)))
    assert bool(torch.isfinite(after).all())


def test_a_zero_gradient_leaves_a_measured_distance_as_it_is() -> None:
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer, oracle = DistanceAdam([point]), quadratic()
    for _ in range(STEPS):  # the search for the first distance is over by then
        advance(point, optimizer, oracle)
    before = optimizer.distance
    after = advance(point, optimizer, lambda _: (7.0, torch.zeros(4, dtype=torch.float64)))
    assert optimizer.distance == before and bool(torch.isfinite(after).all())


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 0.0])
def test_a_loss_that_gives_no_scale_does_no_harm(loss: float) -> None:
    point = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer, oracle = DistanceAdam([point]), quadratic()
    for _ in range(200):
        advance(point, optimizer, lambda at: (loss, oracle(at)[1]))
        assert 0.0 < optimizer.distance < math.inf
    assert float((point.detach() - TARGET).abs().max()) < float(TARGET.abs().max())


def test_without_a_closure_the_gradient_at_hand_is_used() -> None:
    point = nn.Parameter(torch.zeros(4))
    optimizer = DistanceAdam([point])
    assert optimizer.step() is None
    assert torch.equal(point.detach(), torch.zeros(4))  # no gradient, no step
    point.grad = torch.tensor([1.0, -1.0, 2.0, 0.0])
    optimizer.step()
    assert optimizer.distance == pytest.approx(1e-2)  # no loss, no scale
    for _ in range(20):
        point.grad = point.detach() - torch.tensor([1.0, -1.0, 2.0, 0.0])
        optimizer.step()
    assert bool(torch.isfinite(point).all()) and optimizer.distance > 0.0


def test_the_multipliers_act_where_the_power_says_so() -> None:
    # Peaks 4 and 0.25 in units of 1: multipliers 0.5 and 2. Loss 3, g = (1, 0.125):
    # 0.03 / (0.5 * 1 + 2 * 0.125) = 0.04, and x = -0.04 * (0.5, 2).
    point = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    peaks = Coordinates(0.5, [torch.tensor([4.0, 0.25], dtype=torch.float64)], 1.0)
    optimizer = DistanceAdam([point], coordinates=peaks)
    found = advance(point, optimizer, lambda _: (3.0, torch.tensor([1.0, 0.125]).double()))
    assert optimizer.distance == pytest.approx(0.04)
    assert found.tolist() == pytest.approx([-0.02, -0.08])


def test_two_groups_are_refused() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    with pytest.raises(InputError, match="single group"):
        DistanceAdam(groups)


def test_a_rate_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match="lr is 0"):
        DistanceAdam([nn.Parameter(torch.zeros(1))], lr=0.0)
