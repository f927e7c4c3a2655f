"""Matrix-shaped steps: against a singular value decomposition, and who gets them."""

import pytest
import torch
from torch import nn

from grasp_tune.optimizers.adam import CoordinateAdam
from grasp_tune.optimizers.muon import (
    SIZE,
    MatrixAdam,
    equalized,
    equalized_in_blocks,
    hidden_matrices,
)


@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (16, 16), (2, 2)])
def test_all_directions_get_about_the_same_size(shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(3)
    matrix = torch.randn(shape, generator=draw)
    sizes = torch.linalg.svdvals(equalized(matrix))
    assert sizes.max() < 1.3 and sizes.min() > 0.3  # an iteration of five rounds is no more exact
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    # The directions are those of the matrix: U V^T has the largest inner product with it.
    assert torch.sum(equalized(matrix) * (u @ v)) > 0.8 * min(shape)


def test_a_matrix_of_zeros_stays_where_it_is() -> None:
    assert torch.equal(equalized(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_units_of_the_gradient_do_not_matter() -> None:
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(4))
    for unit in (2.0**-40, 2.0**40):
        assert torch.allclose(equalized(matrix), equalized(unit * matrix), atol=1e-5)


def test_the_first_steps_by_hand() -> None:
    # m = 0.1 g, looked ahead 0.9 * 0.1 g + 0.1 g: a multiple of g, whose U V^T is that of g.
    # Divided by the roots of their own squares, its numbers are signs.
    point, vector = nn.Parameter(torch.zeros(2, 8)), nn.Parameter(torch.zeros(3))
    optimizer = MatrixAdam([point, vector], lr=0.5, matrices=(0,))
    point.grad = torch.randn(2, 8, generator=torch.Generator().manual_seed(5))
    vector.grad = torch.tensor([2.0, -3.0, 0.0])
    optimizer.step()
    first, one = equalized(point.grad), point.detach().clone()
    assert torch.allclose(one, -0.5 * SIZE * first.sign(), atol=1e-6)
    assert torch.allclose(vector.detach(), torch.tensor([-0.5, 0.5, 0.0]))  # Adam's first move
    # The second: m = 0.09 g1 + 0.1 g2, ahead 0.9 m + 0.1 g2; squares weigh 1 - 2^-0.8 and 2^-0.8.
    before = point.grad
    point.grad = torch.randn(2, 8, generator=torch.Generator().manual_seed(6))
    optimizer.step()
    second = equalized(0.9 * (0.09 * before + 0.1 * point.grad) + 0.1 * point.grad)
    fresh = 2.0**-0.8
    move = second / torch.sqrt((1.0 - fresh) * first**2 + fresh * second**2)
    move *= SIZE / move.square().mean().sqrt()
    assert torch.allclose(point.detach() - one, -0.5 * move, atol=1e-5)


def test_a_matrix_without_a_gradient_to_speak_of_stays_where_it_is() -> None:
    point = nn.Parameter(torch.ones(3, 4))
    optimizer = MatrixAdam([point], lr=0.1, matrices=(0,))
    point.grad = torch.zeros(3, 4)
    optimizer.step()
    assert torch.equal(point.detach(), torch.ones(3, 4))


def test_a_layer_that_is_not_reached_rests_and_stays_finite() -> None:
    # Experts that get no rows, dead units: the mean shrinks until its squares are no numbers.
    torch.manual_seed(0)
    point, twin = (torch.randn(6, 9, requires_grad=True) for _ in range(2))
    optimizer = MatrixAdam([point, twin], lr=0.1, matrices={0, 1})
    for at in range(600):
        twin.grad = torch.randn(6, 9)
        point.grad = torch.randn(6, 9) if at < 5 else torch.zeros(6, 9)
        rested = point.detach().clone()
        optimizer.step()
        assert torch.isfinite(point).all() and torch.equal(point, rested) == (at >= 5)
    point.grad = torch.randn(6, 9)
    optimizer.step()
    move = (point - rested).detach().square().mean().sqrt().item()
    assert move == pytest.approx(0.1 * 0.2, rel=1e-4)
    assert torch.isfinite(equalized(1e-21 * torch.randn(6, 9))).all()


def test_unit_sizes_are_those_of_the_rows_of_matrices() -> None:
    points = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
    optimizer = MatrixAdam(points, lr=0.1, matrices=[0])
    points[0].grad, points[1].grad = torch.tensor([[3.0, -4.0], [0.0, 0.0]]), torch.ones(2)
    optimizer.step()
    (sizes,) = optimizer.unit_sizes()
    torch.testing.assert_close(sizes, torch.tensor([0.4, 0.0]))  # a tenth of the gradient


def test_without_matrices_it_is_adam() -> None:
    points = [nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    optimizers = [MatrixAdam(points[:1], lr=0.1), CoordinateAdam(points[1:], lr=0.1)]
    for step in range(5):
        gradient = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        for point, optimizer in zip(points, optimizers, strict=True):
            point.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(*points)


def test_filters_are_rows_and_embeddings_vectors_and_linear_models_have_no_hidden_matrices() -> (
    None
):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4), nn.Linear(4, 1))
    # Parameters: filters, bias, scale, shift, weight, bias, row, bias.
    assert hidden_matrices(net, net.parameters()) == {0, 4}
    words = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 4))
    assert hidden_matrices(words, words.parameters()) == {1}  # the last layer is not hidden
    assert not hidden_matrices(nn.Linear(9, 4), nn.Linear(9, 4).parameters())
    # Without the model, nobody can tell an embedding from a matrix.
    assert hidden_matrices(None, words.parameters()) == {0, 1}
    empty = [torch.zeros(0, 3), torch.zeros(3, 0), torch.zeros(2, 2), torch.zeros(2, 2)]
    assert hidden_matrices(None, empty) == {2}


def test_it_goes_on_bit_for_bit() -> None:
    def trained(stop: int) -> tuple[nn.Parameter, MatrixAdam]:
        point = nn.Parameter(torch.ones(3, 4))
        optimizer = MatrixAdam([point], lr=0.1, matrices=(0,))
        return go_on(point, optimizer, 0, stop)

    def go_on(
        point: nn.Parameter, optimizer: MatrixAdam, start: int, stop: int
    ) -> tuple[nn.Parameter, MatrixAdam]:
        for step in range(start, stop):
            point.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return point, optimizer

    whole, _ = trained(6)
    half, optimizer = trained(3)
    other = nn.Parameter(half.detach().clone())
    fresh = MatrixAdam([other], lr=0.1, matrices=(0,))
    fresh.load_state_dict(optimizer.state_dict())
    assert torch.equal(go_on(other, fresh, 3, 6)[0], whole)


def test_large_matrices_are_equalized_in_blocks_of_rows() -> None:
    matrix = torch.randn(150, 200, generator=torch.Generator().manual_seed(6))
    whole = equalized_in_blocks(matrix.clone())
    blocks = [equalized(block) for block in matrix.split(50)]
    assert torch.allclose(whole, torch.cat(blocks), atol=1e-5)
    assert torch.allclose(equalized_in_blocks(matrix[:149].clone())[:50], whole[:50], atol=1e-5)
    assert torch.equal(equalized_in_blocks(matrix[:, :9]), equalized(matrix[:, :9]))


def test_matrices_of_one_shape_move_together_as_they_do_alone() -> None:
    draw = torch.Generator().manual_seed(7)
    shapes = [(6, 4), (6, 4), (4, 6), (6, 2, 2), (140, 131)]
    points = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    alone = [nn.Parameter(point.detach().clone()) for point in points]
    together = MatrixAdam(points, lr=0.1, matrices=range(len(points)))
    optimizers = [MatrixAdam([point], lr=0.1, matrices=(0,)) for point in alone]
    for _ in range(3):
        for point, other in zip(points, alone, strict=True):
            point.grad = torch.randn(point.shape, generator=draw)
            other.grad = point.grad.clone()
        together.step()
        for optimizer in optimizers:
            optimizer.step()
    for point, other in zip(points, alone, strict=True):
        assert torch.allclose(point, other, atol=1e-5)
