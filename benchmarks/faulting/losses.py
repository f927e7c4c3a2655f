"""Losses and gradients that are not finite, in some runs or in all."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import grasp_tune as gt
from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import METHODS, searching

BUDGET = 600
FAR = 3.0  # distance from x0 = 0 beyond which the loss goes wrong
FUSED = (False, True)
KINDS = ("one run", "promote", "paper")  # the first: promote without a search
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
    for kind, method, fused in itertools.product(KINDS, methods, FUSED):
        name = f"{kind}, {method}, {'fused' if fused else 'one by one'}"
        result = gt.minimize(
            problem,
            BUDGET,
            METHODS[method] if kind == "one run" else searching(method, kind),
            schedule="paper" if kind == "paper" else "promote",
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
    """Beyond a distance the loss is wrong: runs that go there lose."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        number = VALUES[value]
        if math.isfinite(number):  # not constant: a plateau would be stationary, like a minimum
            return loss * torch.where(distance > FAR, number, 1.0)
        return loss + torch.where(distance > FAR, number, 0.0)

    found = _sweeps(_problem(spoil), methods)
    for name, result in found:
        far = sum(float(item.abs().sum()) for item in result.tensors.values())
        expect(far <= FAR, f"{name}: chose a point at {far}, where the loss is {value}")
    if math.isfinite(VALUES[value]):
        return _row(f"loss {value} in some runs", len(found))
    return _row(f"loss {value} in some runs", len(found), told=_diverged(found))


def gradient_goes_wrong_far_away(folder: Path, methods: Methods = BOTH) -> Row:
    """Beyond a distance the gradient is NaN although the loss is finite."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        # The root's slope at 0 is infinite, times the slope 0 of the ramp below it: NaN.
        return loss + 1e-3 * torch.sqrt(torch.relu(FAR - distance))

    found = _sweeps(_problem(spoil), methods)
    fault = "gradient NaN in some runs, loss finite"
    return _row(fault, len(found), told=_diverged(found))


def gradient_goes_wrong_in_one_cell(folder: Path) -> Row:
    """Only one run has an infinite gradient: it is lost, and no other run changes by a bit."""
    others, low, high = 0, 1e-3, 1e3
    while True:  # bisect between a distance that many runs cross and one that none does
        far = math.sqrt(low * high)
        crossed = sum(not run.finite for run in _paper_sweep(far, fused=True).runs)
        if crossed == 1 or high < 1.01 * low:
            break
        low, high = (far, high) if crossed else (low, far)
    for fused in FUSED:
        undisturbed, result = _paper_sweep(math.inf, fused), _paper_sweep(far, fused)
        lost = [run.arm for run in result.runs if not run.finite]
        expect(len(lost) == 1, f"{len(lost)} runs are lost, not one: {lost}")
        for mine, theirs in zip(result.runs, undisturbed.runs, strict=True):
            expect(theirs.finite, f"run {theirs.arm} is lost anyway")
            expect(mine.arm in lost or mine == theirs, f"run {mine.arm} came out differently")
        expect(result.choice.chosen.arm not in lost, "the lost run was chosen")
        others += len(result.runs) - 1
    outcome = f"that run is lost; the {others} others (fused and one by one) equal bit for bit"
    calls = f"within {BUDGET} each time"
    return Row("gradient infinite in one cell only, loss finite", "local", outcome, calls, "0")


def _paper_sweep(far: float, fused: bool) -> gt.Result:
    """Return a sweep of independent runs with an infinite gradient beyond a distance."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        # Always 0; its slope is 0, or too large for single precision.
        nothing = (distance - distance.detach()) * torch.where(distance > far, 3e38, 0.0).detach()
        return loss + nothing + nothing

    return gt.minimize(_problem(spoil), BUDGET, schedule="paper", fused=fused, progress=False)


def _diverged(found: list[tuple[str, gt.Result]]) -> str:
    """Return how many runs diverged; raise if none did, since nothing was then tested."""
    runs = [run for _, result in found for run in result.runs]
    lost = sum(not run.finite for run in runs)
    expect(lost, f"none of {len(runs)} runs left the finite")
    return f"{lost} of {len(runs)} runs"


def everything_diverges(folder: Path, methods: Methods = BOTH) -> Row:
    """The loss is finite only at x0: x0 is returned, and the result says why."""

    def spoil(loss: Tensor, distance: Tensor) -> Tensor:
        return loss + torch.where(distance > 0.0, math.nan, 0.0)

    found = _sweeps(_problem(spoil), methods)
    for name, result in found:
        expect(result.cell is None, f"{name}: chose {result.choice.key}")
        expect(
            any("no run stayed finite" in note for note in result.notes),
            f"{name}: no word about divergence in {result.notes}",
        )
    return _row("all runs diverge", len(found), "x0 is returned, and the result says why")


def start_is_not_finite(folder: Path, value: str) -> Row:
    """The loss at x0 is not finite: refused in one sentence before any training."""
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


def _row(fault: str, sweeps: int, outcome: str = "a finite choice", told: str = "") -> Row:
    count = f"{sweeps} kinds of sweep{f', {told} left the finite and lost' if told else ''}"
    return Row(fault, "local", f"{outcome} ({count})", f"within {BUDGET} each time", "0")
