"""One task: the same bits whoever runs it, in how many pieces, and whatever ran before."""

import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import grasp_tune as gt
from grasp_tune.core.checkpoint_keys import MOMENTS, START
from grasp_tune.core.errors import CheckpointError, InputError, ProblemError
from grasp_tune.core.tasks import (
    Arm,
    ProbeOutcome,
    ProbeTask,
    Sample,
    Score,
    ScoreOutcome,
    ScoreTask,
    Segment,
    SegmentOutcome,
    TrainTask,
)
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.sampling import read_coordinates
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.store import CheckpointStore, TemporaryStore
from tests.engine import workbench
from tests.engine.workbench import Bench, same_bits

BASES = ("sgd", "momentum", "adam", "adamw", "adagrad", "unixgrad")


@pytest.mark.parametrize("base", BASES)
def test_a_run_cut_at_any_step_has_the_same_bits(base: str) -> None:
    whole, cut = (Bench(workbench.problem(workbench.dropout)) for _ in range(2))
    for bench in (whole, cut):
        bench.probe()
    power = 1.0 if base in ("adam", "adagrad") else 0.0
    run = Segment(
        Arm.of(1, base, 0.05, power=power),
        0,
        20,
        keep=(20,),
        averages=(8.0,),
        keep_averages=True,
        save=True,
        anneal=(8, 24),
    )
    whole.train(run)
    places = (0, 2, 12, 14, 20)  # whole steps of UniXGrad too
    for start, stop in pairwise(places):
        last = stop == 20
        cut.train(replace(run, start=start, stop=stop, keep=(20,) if last else ()))
    for key in map(str, run.writes):
        one, other = whole.store.read(key), cut.store.read(key)
        assert same_bits(one.tensors, other.tensors), key
        assert one.meta == other.meta


PROGRAM = """
import sys, torch
torch.set_num_threads(1)
from grasp_tune.core.tasks import Arm, Segment
from grasp_tune.runtime.store import CheckpointStore
from tests.engine import workbench
bench = workbench.Bench(
    workbench.problem(workbench.batch_norm), seed=4, store=CheckpointStore(sys.argv[1])
)
print(bench.train(Segment(Arm.of(1, "adam", 0.01), 6, 14, keep=(14,), averages=(8.0,), save=True)))
"""


def test_a_task_moved_to_a_fresh_process_has_the_same_bits(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    bench = Bench(workbench.problem(workbench.batch_norm), seed=4, store=store)
    arm = Arm.of(1, "adam", 0.01)
    bench.train(Segment(arm, 0, 6, averages=(8.0,), save=True))
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    keys = ["run001-000000014", "run001-000000014-state"]
    written = {key: store.read(key).tensors for key in keys}
    bench.train(Segment(Arm.of(7, "sgd", 1e3), 0, 5))  # whatever ran before does not matter
    here = bench.train(Segment(arm, 6, 14, keep=(14,), averages=(8.0,), save=True))
    assert there.stdout.strip() == str(here)
    assert all(same_bits(written[key], store.read(key).tensors) for key in keys)


def numpy_noise(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss as people write them: mixing with numbers from NumPy and from `random`."""
    share = float(np.random.beta(2.0, 2.0)) * random.random()  # noqa: NPY002
    x, y = batch
    return functional.cross_entropy(model(share * x + (1 - share) * x.flip(0)), y)


def test_noise_of_the_loss_is_addressed_and_the_callers_is_left_alone() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    expected = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    bench = Bench(workbench.problem(workbench.dropout, numpy_noise))
    run = Segment(Arm.of(1, "sgd", 0.1), 0, 5, keep=(5,))
    first = bench.train(run)
    point = bench.point(str(run.candidates[0]))
    assert (torch.rand(1), np.random.rand(), random.random()) == expected  # noqa: NPY002
    assert str(bench.train(run)) == str(first)  # NaN, where no norm was asked for, equals nothing
    assert same_bits(point, bench.point(str(run.candidates[0])))


def test_the_probe_is_the_mean_over_its_minibatches() -> None:
    bench = Bench(workbench.problem())
    outcome = bench.run(ProbeTask("probe", (0, 5), (0, 3)))
    assert isinstance(outcome, ProbeOutcome)
    assert (outcome.calls, outcome.gradients, outcome.values) == (8, 5, 3)
    oracle = bench.worker.oracle
    found, values = [], []
    for call in range(5):
        oracle.gradient("probe", call)
        found.append(torch.cat([p.grad.flatten() for p in oracle.parameters if p.grad is not None]))
    for call in range(3):
        values.append(oracle.value("value", call))
    assert outcome.gradient_norm == pytest.approx(
        float(torch.stack(found).mean(0).norm()), rel=1e-5
    )
    squares = sum(float(item.square().sum()) for item in found) / 5
    assert outcome.gradient_square == pytest.approx(squares, rel=1e-5)
    assert outcome.value == pytest.approx(sum(values) / 3)
    assert outcome.value_square == pytest.approx(sum(v * v for v in values) / 3)
    assert outcome.parameters == 12 * 4 + 4


def test_a_probe_in_parts_sees_the_same_minibatches() -> None:
    whole, parts = (Bench(workbench.problem(workbench.mlp)) for _ in range(2))
    expected = whole.run(ProbeTask("probe", (0, 7), (0, 6), moments=True))
    for part, (low, high) in enumerate([(0, 2), (2, 3), (3, 7)]):
        values = (2 * part, 2 * part + 2)
        parts.run(ProbeTask(f"p{part}", (low, high), values, moments=True, part=part))
    merged = parts.run(ProbeTask("merge", moments=True, merge=3))
    assert isinstance(expected, ProbeOutcome)
    assert isinstance(merged, ProbeOutcome)
    assert merged.calls == 0
    assert whole.calls == parts.calls == expected.calls == 13
    assert (merged.gradients, merged.values) == (expected.gradients, expected.values)
    for name in ("gradient_norm", "gradient_square", "value", "value_square"):
        assert getattr(merged, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    one, other = (bench.store.read(str(MOMENTS)) for bench in (whole, parts))
    assert same_bits(one.tensors, other.tensors)
    assert one.meta == other.meta


def test_the_probe_keeps_no_sizes_of_embeddings() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(2, 1))

    bench = Bench(
        gt.TorchProblem(
            model=model,
            loss=lambda net, batch: net(batch[0]).square().mean(),
            data=(torch.arange(5).unsqueeze(1),),
            batch_size=3,
        )
    )
    bench.run(ProbeTask("probe", (0, 4), (0, 0), moments=True))
    saved = bench.store.read(str(MOMENTS))
    assert set(saved.tensors) == {"peak.1", "peak.2"}
    seen = torch.cat([item.flatten() for item in saved.tensors.values()]).sort().values
    assert saved.meta["typical"] == float(seen[1])  # the middle of three
    found = read_coordinates(bench.store, 0.5, len(bench.worker.trained))
    assert found is not None and found.peaks[0] is None and found.peaks[1] is not None


def test_probing_and_scoring_leave_the_buffers_alone() -> None:
    bench = Bench(workbench.problem(workbench.batch_norm))
    run = Segment(Arm.of(1, "sgd", 0.05), 0, 6, keep=(6,))
    bench.train(run)
    key = str(run.candidates[0])
    for point in (START, key):
        before = bench.point(point)
        bench.run(ProbeTask("probe", (0, 3), (0, 3)))
        by: Score
        for by in ("value", "gradient"):
            bench.run(ScoreTask("score", by, (Sample(point, 0, 3),)))
            assert same_bits(model_tensors(bench.worker.model), before)
            assert same_bits(bench.point(point), before)


def test_each_candidate_carries_its_buffers() -> None:
    bench = Bench(workbench.problem(workbench.batch_norm))
    run = Segment(Arm.of(1, "sgd", 0.05), 0, 6, keep=(2, 6), averages=(0.0,), keep_averages=True)
    bench.train(run)
    points = [bench.point(str(key)) for key in run.candidates]
    assert [int(point["buffer.1.num_batches_tracked"]) for point in points] == [2, 6, 6]
    means = [point["buffer.1.running_mean"] for point in points]
    assert not torch.equal(means[0], means[1])
    # The plain average over the six iterates lies between the first and the last of them.
    assert not torch.equal(means[2], means[1])
    assert int(bench.start()["buffer.1.num_batches_tracked"]) == 0


class Replacing(nn.Module):
    """Puts a new tensor in the place of its buffer, as some models do."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(workbench.FEATURES, workbench.CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        out: Tensor = self.layer(x)
        return out


def test_a_buffer_that_is_replaced_is_put_back_too() -> None:
    bench = Bench(workbench.problem(Replacing))
    bench.run(ProbeTask("probe", (0, 3), (0, 3)))
    assert float(bench.start()["buffer.seen"]) == 0.0
    run = Segment(Arm.of(1, "sgd", 0.05), 0, 4, keep=(4,))
    bench.train(run)
    assert float(bench.point(str(run.candidates[0]))["buffer.seen"]) == 4.0
    bench.run(ScoreTask("score", "value", (Sample(str(run.candidates[0]), 0, 3),)))
    assert float(bench.worker.model.seen) == 4.0  # type: ignore[arg-type]


def test_scores_are_means_over_the_ensembles_own_minibatches() -> None:
    bench = Bench(workbench.problem())
    outcome = bench.run(ScoreTask("score", "value", (Sample(START, 2, 5),)))
    assert isinstance(outcome, ScoreOutcome)
    bench.worker.place(START)
    values = [bench.worker.oracle.value("ensemble", call) for call in (2, 3, 4)]
    assert outcome.calls == outcome.samples[0].count == 3
    assert outcome.samples[0].mean == pytest.approx(sum(values) / 3)
    others = [bench.worker.oracle.value("probe", call) for call in (2, 3, 4)]
    assert values != others


def test_validation_data_serve_the_choice_by_value_in_evaluation_mode() -> None:
    modes = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        modes.append((model.training, float(batch[1].max())))
        return workbench.cross_entropy(model, batch)

    x, y = workbench.rows()
    held_out = (x[:50], torch.zeros_like(y[:50]))
    bench = Bench(workbench.problem(workbench.dropout, loss, validation=held_out))
    bench.run(ScoreTask("score", "value", (Sample(START, 0, 4),)))
    assert modes == [(False, 0.0)] * 4
    modes.clear()
    bench.run(ScoreTask("score", "gradient", (Sample(START, 0, 4),)))
    assert all(training and largest > 0 for training, largest in modes)
    assert bench.worker.model.training


@pytest.mark.parametrize("model", [workbench.dropout, workbench.batch_norm])
def test_candidates_are_scored_without_dropout_but_with_batch_statistics(
    model: Callable[[], nn.Module],
) -> None:
    modes = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        modes.append(model.training)
        return workbench.cross_entropy(model, batch)

    bench = Bench(workbench.problem(model, loss))
    bench.run(ScoreTask("score", "value", (Sample(START, 0, 2),)))
    assert modes == [model is workbench.batch_norm] * 2 and bench.worker.model.training
    bench.run(ProbeTask("probe", (0, 2), (0, 0)))
    assert modes[2:] == [True, True]


def test_exact_tasks_use_all_data_and_count_training_only() -> None:
    x, y = workbench.rows()
    bench = Bench(workbench.problem())
    outcome = bench.run(ProbeTask("probe", exact=True))
    assert isinstance(outcome, ProbeOutcome)
    bench.worker.place(START)
    model = bench.worker.model
    assert outcome.value == pytest.approx(float(workbench.cross_entropy(model, (x, y)).detach()))
    assert bench.calls == outcome.calls == 0
    run = Segment(Arm.of(1, "unixgrad", 0.5), 0, 6, keep=(6,))
    bench.run(TrainTask("train", (run,), exact=True))
    assert bench.calls == 6
    sample = Sample(str(run.candidates[0]), 0, 1)
    scored = bench.run(ScoreTask("score", "value", (sample,), exact=True))
    assert isinstance(scored, ScoreOutcome)
    assert scored.calls == 0
    assert scored.samples[0].mean < outcome.value
    assert bench.calls == 6


def endless() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, with noise from the global generator."""
    x, y = workbench.rows()
    while True:
        at = torch.randint(0, len(x), (8,))
        yield x[at], y[at]


def test_an_endless_iterable_gives_the_same_bits_in_one_piece_or_two() -> None:
    whole, cut = (Bench(workbench.problem(data=endless)) for _ in range(2))
    run = Segment(Arm.of(1, "sgd", 0.1), 0, 9, keep=(9,), save=True)
    whole.run(ProbeTask("probe", (0, 4), (0, 2)))
    whole.train(run)
    cut.train(replace(run, stop=4, keep=()))
    cut.run(ProbeTask("probe", (0, 4), (0, 2)))
    cut.train(replace(run, start=4))
    assert same_bits(whole.point(str(run.candidates[0])), cut.point(str(run.candidates[0])))


def test_the_wrong_base_says_so() -> None:
    def nothing(params: list[Tensor], value: float) -> object:
        return None

    run = Segment(Arm.of(1, "mine", 0.1), 0, 4)
    worker = Worker(workbench.problem(), 0, TemporaryStore(), {"mine": nothing})
    with pytest.raises(InputError, match="mine returned NoneType, expected a torch Optimizer"):
        worker.run(TrainTask("train", (run,)))
    with pytest.raises(InputError, match="base: got 'other', expected one of ada"):
        worker.run(TrainTask("train", (replace(run, arm=Arm.of(1, "other", 0.1)),)))


def test_an_optimizer_that_asks_more_than_once_gets_no_more_calls_than_there_are() -> None:
    bases = {"lbfgs": lambda params, value: torch.optim.LBFGS(params, lr=value, max_iter=4)}
    calls = 0

    def count(number: int) -> None:
        nonlocal calls
        calls += number

    worker = Worker(workbench.problem(), 0, TemporaryStore(), bases, count)
    outcome = worker.run(TrainTask("train", (Segment(Arm.of(1, "lbfgs", 0.1), 0, 11),)))
    assert outcome.calls == calls == 11


def test_a_missing_state_names_its_key() -> None:
    bench = Bench(workbench.problem())
    with pytest.raises(CheckpointError, match="run001-000000004-state is missing") as caught:
        bench.train(Segment(Arm.of(1, "sgd", 0.1), 4, 6))
    assert caught.value.key == "run001-000000004-state"


def test_a_run_that_stops_being_finite_is_stopped_at_once() -> None:
    bench = Bench(workbench.problem())
    outcome = bench.train(Segment(Arm.of(1, "sgd", 1e38), 0, 50, keep=(50,)))[0]
    assert isinstance(outcome, SegmentOutcome)
    assert not outcome.finite
    assert math.isnan(outcome.loss)
    assert outcome.calls == bench.calls < 5
    assert bench.store.exists("run001-000000050")  # whoever reads it finds it, and sees it lose


def test_the_choice_may_go_by_a_metric_of_the_validation_rows() -> None:
    held = workbench.rows(seed=8)
    keys: dict[str, Any] = {"validation": held, "metric": "accuracy", "choose_by": "metric"}
    result = gt.minimize(replace(workbench.problem(), **keys), 400, progress=False)
    assert (result.metric, result.validation) == ("accuracy", len(held[0]))
    scores = [row.score for row in result.candidates if math.isfinite(row.score)]
    assert all(0.0 <= score <= 1.0 for score in scores)
    # A mean over minibatches of 1 - accuracy: a multiple of one row's share.
    chosen = result.choice.chosen
    shares = chosen.score * chosen.samples * workbench.problem().batch_size
    assert shares == pytest.approx(round(shares), abs=1e-6)
    with pytest.raises(ProblemError, match="choose_by: got 'metric', which needs a metric and val"):
        replace(workbench.problem(), choose_by="metric")


def test_validation_loss_and_metric_are_both_known_whichever_chooses() -> None:
    x, y = workbench.rows()
    seen: list[int] = []

    def right(outputs: Tensor, targets: Tensor) -> float:
        seen.append(len(targets))
        return float((outputs.argmax(dim=1) == targets).double().mean())

    keys: dict[str, Any] = {"validation": (x[:24], y[:24]), "metric": right}
    for by in ("loss", "metric"):
        given = workbench.problem(**keys, choose_by=by)
        result = gt.minimize(given, 600, progress=False)
        assert result.measured == "right" and result.looks
        (look,) = [
            look
            for look in result.looks
            if (look.arm, look.call, look.average)
            == (result.choice.chosen.arm, result.choice.chosen.call, result.choice.chosen.average)
        ]
        model = result.model
        with torch.no_grad():
            whole = float(nn.functional.cross_entropy(model(x[:24]), y[:24]))
        # Three minibatches of eight rows are all rows; the race takes six or more.
        assert look.samples % 3 == 0 and look.loss == pytest.approx(whole, rel=1e-5)
        assert look.metric == pytest.approx(right(model(x[:24]), y[:24]))
    assert 24 in seen  # over all rows of a look at once


def test_a_module_that_an_earlier_sweep_has_moved_is_told() -> None:
    shared = workbench.linear()
    problem = workbench.problem(lambda: shared)
    gt.minimize(problem, 60, progress=False)
    with pytest.warns(UserWarning, match="the very module that an earlier sweep has moved"):
        gt.minimize(problem, 60, progress=False)
