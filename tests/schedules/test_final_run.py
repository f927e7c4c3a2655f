"""The final run of the default schedule: early stopping by looks at validation data."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import grasp_tune as gt
from grasp_tune.core.errors import InputError
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome, ScoreOutcome
from grasp_tune.report.advice import next_steps
from grasp_tune.report.figures import curve_figure
from grasp_tune.runtime.sweep_folder import load_search
from grasp_tune.schedules.final_run import ENDED_EARLY, _StepSize
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.step_list import FinalStart


def memorizing() -> gt.TorchProblem:
    """Random labels: whatever is learned from them is wrong on other rows."""
    draw = torch.Generator().manual_seed(2)
    rows = [torch.randn(count, 10, generator=draw) for count in (48, 400)]
    labels = [torch.randint(0, 2, (len(x),), generator=draw) for x in rows]
    return gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)),
        loss=nn.CrossEntropyLoss(),
        data=(rows[0], labels[0]),
        validation=(rows[1], labels[1]),
        batch_size=16,
        metric="accuracy",
    )


def test_a_run_that_gets_worse_on_validation_data_ends_early() -> None:
    result = gt.minimize(memorizing(), 3000, schedule=gt.Promote(patience=1), progress=False)
    spent = sum(result.calls.values())
    assert spent < 2000  # one part to get better, one to get worse, of eight
    looks = [row for row in result.candidates if row.note == "not the best of its run"]
    assert looks and all(row.samples == 12 for row in looks)  # 0.004 of 3000
    best = min(
        (row for row in result.candidates if row.arm and row.samples), key=lambda row: row.score
    )
    assert best.score < min(row.score for row in looks)
    assert result.choice.chosen.call < max(row.call for row in looks)
    assert ENDED_EARLY in result.notes
    assert any("More budget is unlikely to help" in step for step in next_steps(result, None))
    names = [trace.name for trace in curve_figure(result).data]
    assert "validation loss" in names or result.cell is None
    again = gt.minimize(memorizing(), 3000, schedule=gt.Promote(patience=1), progress=False)
    assert again.calls == result.calls


def test_validation_data_alone_ends_a_run_that_memorizes() -> None:
    result = gt.minimize(memorizing(), 3000, progress=False)
    assert sum(result.calls.values()) < 2500 and ENDED_EARLY in result.notes
    never = gt.minimize(memorizing(), 3000, schedule=gt.Promote(patience=0), progress=False)
    assert sum(never.calls.values()) > 2900 and ENDED_EARLY not in never.notes


def test_looks_are_on_the_same_rows_and_too_small_ones_end_nothing() -> None:
    seen: Counter[float] = Counter()

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if not model.training:
            seen[float(batch[0].sum())] += 1
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    gt.minimize(replace(memorizing(), loss=loss), 3000, progress=False)
    counts = [count for _, count in seen.most_common(13)]
    # 0.004 of 3,000, once for every look; those of the last race are fewer.
    assert len(set(counts[:12])) == 1 and counts[12] < counts[0]
    # 0.004 of 1,900 calls are seven minibatches, fewer than eight.
    short = gt.minimize(memorizing(), 1900, progress=False)
    assert ENDED_EARLY not in short.notes and "look" not in short.table()


def test_a_run_that_gets_better_goes_on_to_its_end() -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    problem = gt.TorchProblem(
        model=lambda: nn.Linear(4, 1, bias=False),
        loss=nn.MSELoss(),
        data=(x, x.sum(1, keepdim=True)),
        validation=(x[:50], x[:50].sum(1, keepdim=True)),
    )
    result = gt.minimize(problem, 1000, schedule=gt.Promote(patience=2), progress=False)
    assert 900 < sum(result.calls.values()) <= 1000
    assert math.isfinite(result.score)


def test_a_run_that_is_stopped_returns_the_best_point_that_validation_has_seen(
    tmp_path: Path,
) -> None:
    promote = gt.Promote(patience=1)
    gt.minimize(memorizing(), 3000, schedule=promote, out=tmp_path, progress=False)
    ended = load_search(tmp_path / "state.json")
    search, seen, later = Search(ended.spec), dict[str, float](), 0
    while tasks := search.round_tasks:
        for task in tasks:
            outcome = ended.outcomes[task.id]
            search.tell(task, outcome)
            if "look" in task.id and isinstance(outcome, ScoreOutcome):
                seen |= {item.key: item.mean for item in outcome.samples}
        if seen and search.choice is None:
            best = min(seen, key=seen.__getitem__)
            assert search.leader == search.partial().key == best
            later += best != list(seen)[-1]
    assert later  # or the last look would do


def test_patience_is_a_number_of_looks() -> None:
    with pytest.raises(InputError, match=r"patience: got -1"):
        gt.Promote(patience=-1)


@pytest.mark.parametrize("schedule", [gt.Promote(), gt.Promote(jump=1.0)], ids=["usual", "jump"])
def test_a_run_from_x0_whose_first_part_is_undone_begins_at_x0_again(schedule: gt.Promote) -> None:
    calls = 0

    def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found: torch.Tensor = model(batch[0]).square().mean()
        return found * math.nan if calls == 14 else found  # 2 of the probe, 10 of the ramp before

    data = (torch.randn(40, 3, generator=torch.Generator().manual_seed(0)),)
    problem = gt.TorchProblem(model=lambda: nn.Linear(3, 1), loss=loss, data=data, batch_size=4)
    result = gt.minimize(problem, 50, schedule=schedule, progress=False)
    first, second = result.runs[1:3]  # the ramp is the run before
    assert not first.finite and first.stretches == ((0, 3),)
    assert second.finite and second.stretches[0][0] == 3 and second.parent == 0
    assert result.choice.chosen.arm >= second.arm
    assert sum(result.calls.values()) == calls <= 50


def test_a_network_that_begins_on_a_plateau_leaves_it() -> None:
    # The sign of a product of six: no single input says anything, and losses stay at log 2 for
    # hundreds of calls. Without looking for plateaus the loss ends at .69.
    draw = torch.Generator().manual_seed(21)
    x = 2.0 * (torch.rand(2_000, 6, generator=draw) > 0.5) - 1.0
    y = (x.prod(1) > 0).long()
    problem = gt.TorchProblem(
        model=lambda: nn.Sequential(
            nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
        ),
        loss=nn.CrossEntropyLoss(),
        data=(x, y),
        batch_size=32,
    )
    result = gt.minimize(problem, 2_000, seed=30, progress=False)
    with torch.no_grad():
        assert nn.functional.cross_entropy(result.model(x), y) < 0.3
    assert sum(result.calls.values()) <= 2_000 and not result.calls["repeated"]


def test_a_larger_step_is_tried_on_a_plateau_once_and_never_from_a_loss_of_zero() -> None:
    probe = ProbeOutcome(100, "0" * 16, 100, 2.0, 5.0, 400, 100, 2.0, 4.1)
    method = gt.NonConvex()
    spec = SweepSpec(method, 2_000)
    state = PromoteState(gt.Promote(), spec, probe, method.plan(10**6, 2.0, 2.0), left=2_000)
    step = _StepSize(state, FinalStart(arm := Arm.of(1, "adam", 0.01), arm, loss=2.0))
    step.go_on(1.96, bold=True)  # above 0.95 * 2.0, and above 0.85 times the start's 2.0
    assert step.on_trial and step.arm.value == pytest.approx(0.04)
    # It must not be worse than either of the two parts before it: below 2.0, not below 1.96, since
    # losses of a plateau differ by noise, and the larger step size leaves it sooner.
    assert step.accepts(1.99) and not step.accepts(2.01)
    step.go_back()
    assert step.refused and step.arm.value == pytest.approx(0.01)
    step.go_on(1.95, bold=True)
    assert not step.on_trial
    for before, bold in ((0.0, True), (2.0, False)):
        step = _StepSize(state, FinalStart(arm, arm, loss=before))
        step.go_on(1.96, bold=bold)
        assert not step.on_trial
    # What has left its plateau, at 0.85 * 2.0, needs no larger step.
    step = _StepSize(state, FinalStart(arm, arm, loss=1.7))
    step.go_on(1.69, bold=True)
    assert not step.on_trial and step.learned
