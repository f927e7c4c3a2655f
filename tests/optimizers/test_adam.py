"""The base of the default schedule: hand-worked steps, scales, and a round trip of its state."""

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.adagrad import DiagonalAdaGrad
from grasp_tune.optimizers.adam import CoordinateAdam
from grasp_tune.optimizers.coordinatewise import (
    FLOOR,
    Coordinates,
    embeddings,
    multiplier,
    typical_peak,
)


def stepped(point: Tensor, gradients: list[Tensor], optimizer: CoordinateAdam) -> Tensor:
    """The point after a step for each gradient."""
    for gradient in gradients:
        point.grad = gradient.clone()
        optimizer.step()
    return point.detach()


def test_two_steps_by_hand() -> None:
    # Step 1, g = (4, -2): m = 0.1 g, corrected g; v = g^2; the ratio is (1, -1).
    point = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    optimizer = CoordinateAdam([point], lr=0.5)
    first = stepped(point, [torch.tensor([4.0, -2.0], dtype=torch.float64)], optimizer)
    assert first.tolist() == pytest.approx([0.5, 1.5])
    # Step 2, g = (0, -2): m = 0.9 * 0.1 g1 + 0.1 g2 = (0.36, -0.38), corrected by 1 - 0.81 = 0.19:
    # (1.8947, -2). v = (1 - w) (16, 4) + w (0, 4), w = 2^-0.8 = 0.57435: (6.8104, 4), roots
    # (2.60967, 2). Ratios (0.72604, -1): x = (0.5 - 0.36302, 1.5 + 0.5).
    second = stepped(point, [torch.tensor([0.0, -2.0], dtype=torch.float64)], optimizer)
    assert second.tolist() == pytest.approx([0.13698, 2.0], abs=1e-5)


def test_a_coordinate_that_was_silent_for_long_moves_by_one_step_at_most() -> None:
    point = nn.Parameter(torch.zeros(2))
    optimizer = CoordinateAdam([point], lr=1.0)
    quiet = [torch.tensor([1.0, 0.0])] * 500
    before = stepped(point, quiet, optimizer).clone()
    after = stepped(point, [torch.tensor([1.0, 3.0])], optimizer)
    assert before[1] == 0.0
    # m = 0.3 and v = 9 * 501^-0.8: the ratio 0.3 / 0.25 = 1.2 is cut to 1.
    assert float(after[1]) == -1.0


@pytest.mark.parametrize("factor", [1e-8, 1e-2, 1e2, 1e8])
def test_steps_do_not_depend_on_the_scale_of_the_loss(factor: float) -> None:
    draws = torch.Generator().manual_seed(5)
    gradients = [torch.randn(6, generator=draws) for _ in range(20)]

    def run(unit: float) -> Tensor:
        point = nn.Parameter(torch.zeros(6))
        scaled = [unit * gradient for gradient in gradients]
        peaks = [torch.stack([gradient.abs() for gradient in scaled]).amax(0)]
        coordinates = Coordinates(0.5, peaks, typical_peak(peaks))
        optimizer = CoordinateAdam([point], lr=0.1, coordinates=coordinates)
        return stepped(point, scaled, optimizer)

    assert torch.allclose(run(factor), run(1.0), rtol=1e-4, atol=1e-6)


def test_power_one_makes_a_linear_model_blind_to_the_scale_of_its_features() -> None:
    # A feature times c has c times the gradient; its step must shrink by c, so that the product of
    # weight and feature, which is all that the loss sees, takes the same path.
    draws = torch.Generator().manual_seed(6)
    gradients = [torch.randn(3, generator=draws) for _ in range(15)]
    scale = torch.tensor([10.0, 1.0, 0.2])

    def run(unit: Tensor) -> Tensor:
        point = nn.Parameter(torch.zeros(3))
        scaled = [unit * gradient for gradient in gradients]
        peaks = [torch.stack([gradient.abs() for gradient in scaled]).amax(0)]
        optimizer = CoordinateAdam([point], lr=0.1, coordinates=Coordinates(1.0, peaks, 1.0))
        return stepped(point, scaled, optimizer)

    assert torch.allclose(run(scale) * scale, run(torch.ones(3)), rtol=1e-5)


def test_multipliers_by_hand() -> None:
    # (4 / 2) ** -0.5 = 0.7071; (0.5 / 2) ** -0.5 = 2; quieter than the floor counts as the floor.
    found = multiplier(torch.tensor([4.0, 0.5, 1e-9, 0.0]), 2.0, 0.5)
    assert found.tolist() == pytest.approx([0.70711, 2.0, FLOOR**-0.5, FLOOR**-0.5], rel=1e-4)
    assert typical_peak([torch.tensor([0.0, 3.0]), torch.tensor([5.0, 4.0])]) == 4.0
    assert typical_peak([torch.zeros(2)]) == typical_peak([]) == 1.0


def test_steps_of_embeddings_are_not_divided() -> None:
    # Both have g = 4 and so a ratio of 1; the vector's step is times (4 / 1) ** -0.5 = 1/2.
    words, vector = nn.Embedding(1, 1), nn.Parameter(torch.tensor([3.0]))
    words.weight.data.fill_(3.0)
    both = [vector, words.weight]
    assert embeddings(words, both) == {1} and not embeddings(None, both)
    seen = Coordinates(0.5, [torch.tensor([4.0]), None], 1.0)
    adam = CoordinateAdam(both, lr=0.5, coordinates=seen)
    for point in both:
        point.grad = torch.full_like(point, 4.0)
    adam.step()
    assert vector.tolist() == [2.75] and words.weight.tolist() == [[2.5]]
    # AdaGrad's first move is its distance, here in half likewise.
    adagrad = DiagonalAdaGrad(both, distance=0.5, coordinates=seen)
    adagrad.step()
    assert vector.tolist() == [2.5] and words.weight.tolist() == [[2.0]]


def test_a_state_goes_on_bit_for_bit() -> None:
    draws = torch.Generator().manual_seed(7)
    gradients = [torch.randn(4, generator=draws) for _ in range(10)]
    peaks = Coordinates(0.5, [torch.full((4,), 0.3)], 0.3)
    whole = nn.Parameter(torch.zeros(4))
    one = CoordinateAdam([whole], lr=0.1, coordinates=peaks)
    stepped(whole, gradients[:4], one)
    again = nn.Parameter(whole.detach().clone())
    other = CoordinateAdam([again], lr=0.1, coordinates=peaks)
    other.load_state_dict(one.state_dict())
    assert torch.equal(stepped(whole, gradients[4:], one), stepped(again, gradients[4:], other))


def test_a_rate_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match="lr is 0"):
        CoordinateAdam([nn.Parameter(torch.zeros(1))], lr=0.0)
