"""Losses and gradients that are not finite, in some runs or in all of them."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import grasp_tune as gt
from scripts.faulting.row import Row, expect
from scripts.faulting.sweep import METHODS

BUDGET = 600
FAR = 3.0  # distance from x0 = 0 beyond which the loss goes wrong
FUSED = (False, True)
VALUES = {"NaN": math.nan, "+inf": math.inf, "-inf": -math.inf, "1e37": 1e37}

BOTH = tuple(METHODS)
Methods = tuple[str, ...]
Spoil = Callable[[Tensor, Tensor], Tensor]  # (loss, distance from x0) -> loss


def _problem(spoil: Spoil) -> gt.TorchProblem:
    source = torch.Generator().manual_seed(5)
    features = torch.randn(300, 8, generator=source)
    labels = (features @ torch.randn(8, generator=source) > 0).long()

    def start() -> nn.Module:
        model = nn.Linear(8, 2)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        distance = sum((p.abs().sum() for p in model.parameters()), torch.zeros(()))
        return spoil(value, distance)

    return gt.TorchProblem(
        model=start, loss=loss, data=(features, labels), batch_size=16, device="cpu"
    )


def _sweeps(problem: gt.TorchProblem, methods: Methods) -> list[tuple[str, gt.Result]]:
    found = []
    for schedule, method, fused in itertools.product(("promote", "paper"), methods, FUSED):
        name = f"{schedule}, {method}, {'fused' if fused else 'one by one'}"
        result = gt.minimize(
            problem,
            BUDGET,
            METHODS[method],
            schedule=schedule,  # type: ignore[arg-type]
            fused=fused,
            progress=False,
        )
        spent = sum(result.calls.values())
        expect(spent <= BUDGET, f"{name}: {spent} calls, more than {BUDGET}")
        expect(math.isfinite(result.score), f"{name}: the choice scores {result.score}")
        finite = all(bool(torch.isfinite(item).all()) for item in result.tensors.values())
        expect(finite, f"{name}: the chosen model is not finite")
        found.append((name, result))
    return found


def loss_goes_wrong_far_away(folder: Path, value: str, methods: Methods = BOTH) -> Row:
    """Beyond a distance the loss is not a number to trust: runs that go there lose."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        number = VALUES[value]
        if math.isfinite(number):  # not a constant: a plateau is as stationary as a minimum
            return loss * torch.where(distance > FAR, number, 1.0)
        return loss + torch.where(distance > FAR, number, 0.0)

    for name, result in _sweeps(_problem(spoil), methods):
        far = sum(float(item.abs().sum()) for item in result.tensors.values())
        expect(far <= FAR, f"{name}: chose a point at {far}, where the loss is {value}")
    return _row(f"loss {value} in some runs")


def gradient_goes_wrong_far_away(folder: Path, methods: Methods = BOTH) -> Row:
    """Beyond a distance the gradient is NaN although the loss is finite."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        # The root's slope at 0 is infinite, times the slope 0 of the ramp below it: NaN.
        return loss + 1e-3 * torch.sqrt(torch.relu(FAR - distance))

    _sweeps(_problem(spoil), methods)
    return _row("gradient NaN in some runs, loss finite")


def everything_diverges(folder: Path, methods: Methods = BOTH) -> Row:
    """Whatever is not x0 has no loss: x0 is returned, and the result says why."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        return loss + torch.where(distance > 0.0, math.nan, 0.0)

    for name, result in _sweeps(_problem(spoil), methods):
        expect(result.cell is None, f"{name}: chose {result.choice.key}")
        expect(
            any("no run stayed finite" in note for note in result.notes),
            f"{name}: no word about divergence in {result.notes}",
        )
    return _row("all runs diverge", "x0 is returned, and the result says why")


def start_is_not_finite(folder: Path, value: str) -> Row:
    """The loss at x0 itself is not finite: one sentence before anything is trained."""
    problem = _problem(lambda loss, distance: loss * 0.0 + VALUES[value])
    for schedule in ("promote", "paper"):
        try:
            gt.minimize(problem, BUDGET, schedule=schedule, progress=False)
        except gt.GraspError as error:
            sentence = str(error)
        else:
            sentence = "no error"
        expect("at the start point" in sentence and "\n" not in sentence, sentence)
    return Row(f"loss {value} at the start point", "local", "one clear error before training")


def _row(fault: str, outcome: str = "finite choice; runs that left the finite lose") -> Row:
    return Row(fault, "local", f"{outcome} (8 kinds of sweep)", f"within {BUDGET} each time", "0")
