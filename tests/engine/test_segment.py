"""Lanes: steps that average several minibatches, bit for bit by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import grasp_tune as gt
from grasp_tune.core.errors import InputError, ProblemError
from grasp_tune.core.records import decode, encode
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, TrainTask
from grasp_tune.engine.lane_group import LaneSum
from tests.engine import workbench
from tests.engine.workbench import Bench, same_bits


@pytest.mark.parametrize("lanes", [2, 3, 5])
def test_a_step_of_lanes_is_a_step_with_their_mean_gradient(lanes: int) -> None:
    bench, twin = Bench(workbench.problem()), Bench(workbench.problem())
    run = Segment(Arm.of(1, "sgd", 0.05), 0, 2 * lanes, keep=(2 * lanes,), lanes=lanes)
    (outcome,) = bench.train(run)
    assert isinstance(outcome, SegmentOutcome)
    oracle, losses = twin.worker.oracle, []
    for step in range(2):
        parts = []
        for call in range(lanes * step, lanes * (step + 1)):
            losses.append(float(oracle.gradient("train", call)))
            parts.append([item.grad.clone() for item in oracle.parameters if item.grad is not None])
        while len(parts) > 1:  # neighbours are added, from the left; an odd one waits
            pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
            parts = [
                pair[0] if len(pair) == 1 else [a + b for a, b in zip(*pair, strict=True)]
                for pair in pairs
            ]
        with torch.no_grad():
            for point, total in zip(oracle.parameters, parts[0], strict=True):
                point.add_(total / lanes, alpha=-0.05 * math.sqrt(lanes))
    found = bench.point(str(run.candidates[0]))
    wanted = {f"param.{n}": p.detach() for n, p in twin.worker.model.named_parameters()}
    assert same_bits({key: found[key] for key in wanted}, wanted)
    assert outcome.calls == bench.calls == 2 * lanes
    assert outcome.window_loss == pytest.approx(sum(losses) / len(losses))


def test_units_that_gradients_do_not_reach_any_more_are_silent() -> None:
    def network(off: float) -> nn.Module:
        hidden, last = nn.Linear(2, 4), nn.Linear(4, 1)
        nn.init.constant_(hidden.bias, 9.0)
        with torch.no_grad():
            hidden.bias[:3] += off
        return nn.Sequential(hidden, nn.ReLU(), last)

    def silent(off: float, calls: int = 10**6) -> float:
        asked = []

        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            asked.append(1)
            return (model(batch[0]) - batch[1]).square().mean() * (len(asked) <= calls)

        x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        bench = Bench(gt.TorchProblem(model=lambda: network(off), loss=loss, data=(x, x[:, :1])))
        run = Segment(Arm.of(1, "muon", 1e-4), 0, 5, save=True)
        bench.train(run)
        (outcome,) = bench.train(replace(run, start=5, stop=105))
        assert isinstance(outcome, SegmentOutcome)
        return outcome.silent

    assert silent(0.0) == 0.0
    assert silent(-99.0) == 0.75  # the ReLU of three of four units is off
    assert silent(0.0, calls=20) == 1.0  # nothing for 85 steps: compared with where it began
    assert silent(0.0, calls=80) == 0.0  # 25 steps are too few to say


def test_a_step_that_does_not_fit_is_not_made() -> None:
    for base, lanes, made in (("sgd", 4, 8), ("unixgrad", 2, 8), ("adam", 11, 0)):
        bench = Bench(workbench.problem())
        (outcome,) = bench.train(Segment(Arm.of(1, base, 0.05), 0, 10, lanes=lanes))
        assert isinstance(outcome, SegmentOutcome)
        assert outcome.calls == bench.calls == made


def test_a_run_with_lanes_goes_on_from_its_state() -> None:
    whole, cut = Bench(workbench.problem()), Bench(workbench.problem())
    arm = Arm.of(1, "adam", 0.01)
    whole.train(Segment(arm, 0, 12, keep=(12,), lanes=3))
    cut.train(Segment(arm, 0, 6, save=True, lanes=3))
    cut.train(Segment(arm, 6, 12, keep=(12,), lanes=3))
    key = "run001-000000012"
    assert same_bits(whole.point(key), cut.point(key))


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=70))
def test_the_tree_adds_every_lane_once_and_holds_few_sums(lanes: list[int]) -> None:
    tree, most, gradient = LaneSum(), 0, torch.zeros(1)  # the same memory for every lane
    for at, value in enumerate(lanes):
        gradient.fill_(value)
        tree.add([gradient, None, gradient if at % 2 else None])
        most = max(most, len(tree.parts))
    total, missing, odd = tree.total()
    assert total is not None and missing is None
    assert float(total) == sum(lanes)
    assert float(0 if odd is None else odd) == sum(lanes[1::2])
    assert most <= math.log2(len(lanes)) + 1


def test_lanes_travel_with_the_task_and_are_checked() -> None:
    task = TrainTask("t", (Segment(Arm.of(1, "sgd", 0.1), 0, 9, lanes=3),))
    assert decode(TrainTask, encode(task)) == task
    with pytest.raises(InputError, match="lanes: got 0"):
        Segment(Arm.of(1, "sgd", 0.1), 0, 9, lanes=0)
    with pytest.raises(InputError, match="they have one lane"):
        TrainTask("t", task.segments, exact=True)


@pytest.mark.parametrize(("decay", "clip"), [(0.5, None), (0.0, 0.3), (0.5, 0.3)])
def test_clipping_and_decay_by_hand(decay: float, clip: float | None) -> None:
    given = replace(workbench.problem(), weight_decay=decay, clip=clip)
    bench, twin = Bench(given), Bench(workbench.problem())
    run = Segment(Arm.of(1, "sgd", 0.05), 0, 3, keep=(3,))
    bench.train(run)
    oracle = twin.worker.oracle
    for call in range(3):
        oracle.gradient("train", call)
        gradients = [item.grad.clone() for item in oracle.parameters if item.grad is not None]
        norm = torch.cat([item.flatten() for item in gradients]).norm()
        assert norm > 0.3  # or clipping would have nothing to do
        share = 1.0 if clip is None else float(clip / norm)
        with torch.no_grad():
            for point, gradient in zip(oracle.parameters, gradients, strict=True):
                point.sub_(0.05 * share * gradient)
                if point.ndim > 1:  # biases do not decay
                    point.mul_(1.0 - 0.05 * decay)
    found = bench.point(str(run.candidates[0]))
    for name, point in twin.worker.model.named_parameters():
        assert torch.allclose(found[f"param.{name}"], point, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("base", [None, "adam", "unixgrad"])
def test_decay_makes_the_weights_of_any_optimizer_smaller(base: str | None) -> None:
    def size(**keys: Any) -> float:
        problem = replace(workbench.problem(), **keys)
        result = gt.minimize(problem, 400, gt.NonConvex(base=base), progress=False)
        weights = [item for item in result.model.parameters() if item.ndim > 1]
        return float(sum(item.detach().square().sum() for item in weights))

    assert size(weight_decay=3.0) < 0.9 * size()


def test_decay_and_clipping_that_make_no_sense_are_told() -> None:
    with pytest.raises(ProblemError, match=r"weight_decay: got -1"):
        replace(workbench.problem(), weight_decay=-1)
    with pytest.raises(ProblemError, match=r"clip: got 0"):
        replace(workbench.problem(), clip=0)
