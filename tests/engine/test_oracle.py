"""The oracle: every call counted, every call a function of its address."""

import math

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.sampling import Samples
from tests.engine import workbench


def test_every_call_of_the_loss_is_counted_where_it_happens() -> None:
    seen, counted = 0, 0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal seen
        seen += 1
        return workbench.cross_entropy(model, batch)

    def count(calls: int) -> None:
        nonlocal counted
        counted += calls

    oracle = Oracle(workbench.problem(loss=loss), 0, count)
    oracle.gradient("train", 0)
    oracle.value("ensemble", 0)
    assert counted == seen == 2


def test_dropout_is_addressed_by_purpose_and_call() -> None:
    x, y = workbench.rows()
    alike = (x[:1].expand_as(x), y[:1].expand_as(y))  # every minibatch is the same
    oracle = Oracle(workbench.problem(workbench.dropout, data=alike), 0)
    losses = {
        (purpose, call): oracle.value(purpose, call)
        for purpose in ("train", "probe", "ensemble")
        for call in (0, 1)
    }
    assert len(set(losses.values())) == len(losses)
    torch.rand(100)
    assert oracle.value("probe", 1) == losses["probe", 1]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: model(batch[0]), r"of shape \(8, 4\), expected a scalar; reduce it"),
        (lambda model, batch: 3.0, "loss: it returned float, expected a scalar tensor"),
        (lambda model, batch: torch.tensor(3.0), "does not depend on the model's parameters"),
        (
            lambda model, batch: workbench.cross_entropy(model, batch).detach(),
            "does not depend on the model's parameters",
        ),
        (lambda model, batch: model(batch[0]).sum() * 1j, "a complex tensor, expected a real"),
        (lambda model, batch: model(batch[0]).sum().to("meta"), "a meta tensor, expected a real"),
    ],
)
def test_a_wrong_loss_is_described(loss: object, words: str) -> None:
    oracle = Oracle(workbench.problem(loss=loss), 0)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=words):
        oracle.gradient("train", 0)


def test_a_loss_of_one_element_counts_as_a_scalar() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return workbench.cross_entropy(model, batch).reshape(1, 1)

    oracle, plain = Oracle(workbench.problem(loss=loss), 0), Oracle(workbench.problem(), 0)
    assert float(oracle.gradient("train", 0)) == float(plain.gradient("train", 0))


def test_the_mean_gradient_by_hand() -> None:
    point = nn.Parameter(torch.zeros(2))
    silent = nn.Parameter(torch.zeros(3))  # never has a gradient
    seen = Samples([point, silent], moments=True)
    assert math.isnan(seen.gradients[0])
    for gradient in ([3.0, 0.0], [3.0, -8.0]):
        point.grad = torch.tensor(gradient)
        seen.add(0.5)
    assert seen.gradients == (5.0, pytest.approx((9.0 + 73.0) / 2))  # |(3, -4)|
    assert seen.peaks[0].tolist() == [3.0, 8.0]
    before = seen.gradients
    seen.close()
    assert not seen.sums and seen.gradients == before


def test_gradients_whose_squares_overflow_still_have_a_norm() -> None:
    point = nn.Parameter(torch.zeros(2))
    seen = Samples([point])
    point.grad = torch.tensor([3e30, 4e30])
    seen.add(1.0)
    assert seen.gradients[0] == pytest.approx(5e30)


def test_sums_of_losses_can_be_merged() -> None:
    whole, one, other = Samples(), Samples(), Samples()
    for at, value in enumerate((1.0, 2.0, 6.0)):
        whole.add(value)
        (one if at else other).add(value)
    one.merge(other.tensors())
    assert one.losses == whole.losses == (3.0, 41.0 / 3.0)
    assert one.count == 3 and math.isnan(Samples().losses[0])


def test_the_exact_gradient_is_that_of_all_rows() -> None:
    x, y = workbench.rows()
    counted = 0

    def count(calls: int) -> None:
        nonlocal counted
        counted += calls

    oracle = Oracle(workbench.problem(), 0, count)
    value = oracle.exact(gradient=True)
    found = [item.grad.clone() for item in oracle.parameters if item.grad is not None]
    for item in oracle.parameters:
        item.grad = None
    loss = workbench.cross_entropy(oracle.model, (x, y))
    loss.backward()
    assert value == pytest.approx(float(loss.detach()))
    for one, item in zip(found, oracle.parameters, strict=True):
        assert item.grad is not None
        assert torch.allclose(one, item.grad, atol=1e-6)
    assert counted == 0
    oracle.exact(gradient=True, counted=True)
    assert counted == 1


def test_a_loss_may_take_derivatives_itself() -> None:
    def residual(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].clone().requires_grad_(True)
        slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        return ((slope - 1.0) ** 2).mean()

    oracle = Oracle(workbench.problem(loss=residual), 0)
    assert oracle.value("ensemble", 0) == float(oracle.gradient("ensemble", 0))
    assert oracle.exact(gradient=False) == oracle.exact(gradient=True)


@pytest.mark.parametrize("own", [False, True], ids=["model(x)", "another way"])
def test_a_validation_minibatch_goes_through_the_model_once(own: bool) -> None:
    passes, judged = 0, list[Tensor]()

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal passes
            passes += 1
            return super().forward(x)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        outputs = model(batch[0].clone() if own else batch[0])
        value = nn.functional.cross_entropy(outputs, batch[1])
        with torch.no_grad():
            outputs.zero_()  # what the metric judges is what the model said
        return value

    def metric(outputs: Tensor, targets: Tensor) -> float:
        judged.append(outputs)
        return 0.5

    problem = workbench.problem(
        lambda: Counted(workbench.FEATURES, workbench.CLASSES),
        loss=loss,
        validation=workbench.rows(),
        metric=metric,
        choose_by="metric",
    )
    oracle = Oracle(problem, 0)
    oracle.value("validation", 0)
    assert passes == (2 if own else 1)
    assert len(judged) == 1 and judged[0].abs().sum() > 0.0
