"""Runs as one batched computation: the same as one by one, whatever the base and the model."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from grasp_tune import minimize
from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, TrainTask
from grasp_tune.engine.fused import WIDTH, fusion_width, pays
from tests.engine import workbench
from tests.engine.workbench import Bench, arms

VALUES = (0.001, 0.01, 0.03, 0.1, 0.3)
BASES = {
    "sgd": (),
    "unixgrad": (),
    "adagrad with powers": (0.0, 0.5, 1.0),  # has no batched form: one by one, within its calls
}
MODELS = {
    "linear": workbench.linear,
    "mlp": workbench.mlp,
    "layer norm": workbench.layer_norm,
    "dropout": workbench.dropout,
    "frozen": workbench.frozen,
}


def stretches(base: str) -> list[Segment]:
    """Runs of one base that differ in all that runs of one task may differ in."""
    found = []
    for at, arm in enumerate(arms(base.split()[0], VALUES, BASES[base])):
        stop = (14, 20, 20, 9, 20)[at]  # 9 is no whole number of UniXGrad's steps
        keep = tuple(sorted({0, 5, 8, stop}))
        annealed = (10, 20) if at == 1 else None
        found.append(
            Segment(
                arm,
                0,
                stop,
                keep=keep,
                averages=(0.0, 8.0),
                keep_averages=True,
                save=True,
                anneal=annealed,
            )
        )
    return found


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[key], other[key], rtol=2e-4, atol=2e-5) for key in one)


def check_same(fused: Bench, alone: Bench, segments: list[Segment]) -> None:
    """Both ways agree: outcomes, and every checkpoint that the search asked for."""
    together = fused.train(*segments, norms=True)
    for segment, one, other in zip(
        segments, together, alone.one_by_one(*segments, norms=True), strict=True
    ):
        assert isinstance(one, SegmentOutcome)
        assert isinstance(other, SegmentOutcome)
        assert (one.arm, one.calls, one.finite) == (other.arm, other.calls, other.finite)
        assert one.loss == pytest.approx(other.loss, rel=1e-3, abs=1e-5)
        assert one.window_loss == pytest.approx(other.window_loss, rel=1e-3, abs=1e-5)
        assert one.window_norm == pytest.approx(other.window_norm, rel=1e-3, abs=1e-5)
        assert [point.call for point in one.curve] == [point.call for point in other.curve]
        for key in map(str, segment.candidates):
            assert close(fused.point(key), alone.point(key)), key
    assert fused.calls == alone.calls
    assert fused.store.keys() == alone.store.keys()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("model", ["linear", "layer norm"])
def test_fused_runs_equal_single_runs_for_every_base(base: str, model: str) -> None:
    benches = [Bench(workbench.problem(MODELS[model]), seed=5) for _ in range(2)]
    for bench in benches:
        bench.probe()
    check_same(benches[0], benches[1], stretches(base))


@pytest.mark.parametrize("seed", [0, 11])
@pytest.mark.parametrize("model", ["mlp", "dropout", "frozen"])
def test_fused_runs_equal_single_runs_for_every_model(model: str, seed: int) -> None:
    benches = [Bench(workbench.problem(MODELS[model]), seed=seed) for _ in range(2)]
    check_same(benches[0], benches[1], stretches("sgd"))


@pytest.mark.parametrize("base", BASES)
def test_a_run_may_be_batched_in_one_stretch_and_alone_in_the_next(base: str) -> None:
    first = [replace(item, stop=10, keep=(), keep_averages=False) for item in stretches(base)]
    then = [replace(item, start=10, stop=24, keep=(24,), anneal=(12, 30)) for item in first]
    mixed, alone, swapped = (Bench(workbench.problem(workbench.mlp)) for _ in range(3))
    for bench in (mixed, alone, swapped):
        bench.probe()
    mixed.train(*first)
    mixed.one_by_one(*then)
    swapped.one_by_one(*first)
    swapped.train(*then)
    alone.one_by_one(*first)
    alone.one_by_one(*then)
    for segment in then:
        for key in map(str, segment.candidates):
            assert close(mixed.point(key), alone.point(key)), key
            assert close(swapped.point(key), alone.point(key)), key


def test_runs_that_diverge_leave_the_batch_and_the_others_go_on() -> None:
    values = (0.01, 1e30, 0.02, 1e38)
    segments = [Segment(arm, 0, 12, keep=(3, 12)) for arm in arms("sgd", values)]
    fused, alone = (Bench(workbench.problem(workbench.mlp)) for _ in range(2))
    outcomes = fused.train(*segments)
    singles = alone.one_by_one(*segments)
    for one, other in zip(outcomes, singles, strict=True):
        assert isinstance(one, SegmentOutcome)
        assert isinstance(other, SegmentOutcome)
        assert (one.calls, one.finite) == (other.calls, other.finite)
    assert [item.finite for item in outcomes] == [True, False, True, False]  # type: ignore[attr-defined]
    assert fused.calls == alone.calls < 48
    for key in map(str, segments[0].candidates + segments[2].candidates):
        assert close(fused.point(key), alone.point(key))
    assert fused.store.keys() == alone.store.keys()  # also what a diverged run was told to keep


def test_radii_beyond_float32_are_the_same_batched_and_alone() -> None:
    segments = [Segment(arm, 0, 4, keep=(4,)) for arm in arms("unixgrad", (1.0, 1e30, 1e60))]
    fused, alone = (Bench(workbench.problem()) for _ in range(2))
    outcomes, singles = fused.train(*segments), alone.one_by_one(*segments)
    for one, other in zip(outcomes, singles, strict=True):
        assert isinstance(one, SegmentOutcome)
        assert isinstance(other, SegmentOutcome)
        assert (one.calls, one.finite) == (other.calls, other.finite)


def item_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = workbench.cross_entropy(model, batch)
    return loss * 2.0 if loss.item() > 1e9 else loss


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(workbench.FEATURES, workbench.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if out.sum() > 0 else -out


@pytest.mark.parametrize(
    ("model", "loss", "reason", "spent"),
    [
        (workbench.linear, item_loss, ".item()", 1),
        (Branching, workbench.cross_entropy, "data-dependent control flow", 1),
        (workbench.batch_norm, workbench.cross_entropy, "the model has buffers", 0),
    ],
)
def test_what_cannot_be_batched_runs_one_by_one_within_its_calls(
    model: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    reason: str,
    spent: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = 0

    def counted(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal seen
        seen += 1
        return loss(module, batch)

    segments = [Segment(arm, 0, 7, keep=(7,), save=True) for arm in arms("sgd", VALUES)]
    further = [replace(item, start=7, stop=9, keep=(9,), save=False) for item in segments]
    fused = Bench(workbench.problem(model, counted))
    alone = Bench(workbench.problem(model, loss))
    with caplog.at_level(logging.INFO, logger="grasp_tune.engine.fused"):
        outcomes = fused.train(*segments)
        fused.train(*further)
    assert len(caplog.records) == 1
    assert reason in caplog.text
    # The attempt is one of the first run's calls, so that no more are made than the task has.
    assert seen == fused.calls == 7 * 5 + 2 * 5
    assert [item.calls for item in outcomes] == [7] * 5  # type: ignore[attr-defined]
    alone.one_by_one(*segments)
    for segment in segments[min(spent, 1) :]:
        key = str(segment.candidates[0])
        assert workbench.same_bits(fused.point(key), alone.point(key))


class OwnFault(RuntimeError):
    """An error that has nothing to do with batching."""


@pytest.mark.parametrize("fault", [OwnFault("out of memory"), ValueError("a typing mistake")])
def test_an_error_of_the_users_own_is_not_taken_for_a_loss_that_cannot_be_batched(
    fault: Exception,
) -> None:
    def faulty(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        raise fault

    bench = Bench(workbench.problem(loss=faulty))
    with pytest.raises(type(fault), match=str(fault)):
        bench.train(*[Segment(arm, 0, 7) for arm in arms("sgd", VALUES)])


def test_a_loss_that_cannot_be_batched_leaves_a_note_in_the_result() -> None:
    for loss, noted in ((item_loss, True), (workbench.cross_entropy, False)):
        result = minimize(workbench.problem(loss=loss), 3000, schedule="paper", progress=False)
        assert any("the loss cannot be batched" in note for note in result.notes) == noted


def test_a_loss_that_turns_unbatchable_later_says_what_to_do() -> None:
    seen = 0

    def moody(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal seen
        seen += 1
        return (item_loss if seen > 3 else workbench.cross_entropy)(model, batch)

    bench = Bench(workbench.problem(loss=moody))
    with pytest.raises(SearchError, match=r"at call 3 .*fused=False"):
        bench.train(*[Segment(arm, 0, 7) for arm in arms("sgd", VALUES)])


def test_runs_of_different_bases_or_places_run_one_by_one() -> None:
    bench = Bench(workbench.problem())
    segments = [Segment(Arm.of(1, "sgd", 0.1), 0, 4), Segment(Arm.of(2, "adam", 0.1), 0, 4)]
    assert len(bench.train(*segments)) == 2
    assert bench.calls == 8
    bench.train(Segment(Arm.of(3, "sgd", 0.1), 0, 2, save=True))
    started = Segment(Arm.of(3, "sgd", 0.1), 2, 4)
    assert len(bench.train(started, Segment(Arm.of(4, "sgd", 0.1), 0, 4))) == 2


def test_a_batch_starts_several_runs_from_one_state() -> None:
    fused, alone = (Bench(workbench.problem(workbench.mlp)) for _ in range(2))
    for bench in (fused, alone):
        bench.train(Segment(Arm.of(1, "sgd", 0.01), 0, 6, save=True))
    origin = state_key(1, 6)
    segments = [
        Segment(Arm.of(at, "sgd", value), 6, 12, keep=(12,), origin=origin)
        for at, value in ((2, 0.01), (3, 0.001), (4, 0.1))
    ]
    check_same(fused, alone, segments)


def test_dict_batches_and_several_outputs_can_be_batched() -> None:
    x, y = workbench.rows()

    class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, at: int) -> dict[str, Tensor]:
            return {"x": x[at], "y": y[at]}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    problem = workbench.problem(loss=loss, data=Rows())
    check_same(Bench(problem), Bench(problem), stretches("sgd"))


def test_auto_batches_small_models_of_known_layers_only() -> None:
    assert pays(workbench.linear())
    assert pays(workbench.dropout())
    assert not pays(workbench.batch_norm())
    assert not pays(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    assert not pays(nn.Linear(3000, 1000))


def test_the_width_follows_the_choice_and_the_model() -> None:
    problem, large = workbench.problem(), workbench.problem(lambda: nn.Linear(3000, 1000))
    method = NonConvex()
    assert fusion_width(problem, method, "auto", 0) == WIDTH
    assert fusion_width(large, method, "auto", 0) == 0
    assert fusion_width(large, method, True, 0) == WIDTH
    assert fusion_width(problem, method, False, 0) == 0
    own = NonConvex(base=lambda params, value: torch.optim.SGD(params, lr=value))
    assert fusion_width(problem, own, "auto", 0) == 0
    with pytest.raises(InputError, match="fused: got 'yes', expected True, False or 'auto'"):
        fusion_width(problem, method, "yes", 0)  # type: ignore[arg-type]


def test_a_task_of_one_run_takes_the_ordinary_loop() -> None:
    bench = Bench(workbench.problem())
    outcome = bench.run(TrainTask("t", (Segment(Arm.of(1, "sgd", 0.1), 0, 3),)))
    assert outcome.calls == bench.calls == 3
