"""A sweep that has ended, with more budget: what is known counts, and it only gets better."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import EnsembleName, SweepSpec
from grasp_tune.core.tasks import ScoreTask, Task
from tests.core.simulation import answer, run, segments


def extended(search: Search, budget: int) -> tuple[Search, list[Task]]:
    """The search with more budget, run to its end, and the tasks that this took."""
    state = json.loads(json.dumps(search.state(), allow_nan=False))
    more = Search.from_state(state, replace(search.spec, budget=budget, extends=()), extend=True)
    tasks = list[Task]()
    while not isinstance(step := more.ask(), Step):
        tasks.append(step)
        more.tell(step, answer(step))
    return more, tasks


METHODS: tuple[Method, ...] = (
    NonConvex(),
    NonConvex(base="unixgrad"),
    Convex(option="universal"),
    ConvexFree(),
    Deterministic(),
)
ENSEMBLES: tuple[EnsembleName, ...] = ("resample", "window")


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    ensemble=st.sampled_from(ENSEMBLES),
    budget=st.integers(200, 3000),
    more=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
)
def test_an_extension_keeps_every_budget_and_every_outcome(
    method: Method, ensemble: EnsembleName, budget: int, more: list[int]
) -> None:
    how: EnsembleName = "resample" if method.exact else ensemble
    search, _ = run(SweepSpec(method, budget, ensemble=how))
    for calls in more:
        before, budget = search, budget + calls
        search, tasks = extended(before, budget)
        assert sum(search.calls.values()) <= budget
        assert sum(search.calls.values()) == sum(before.calls.values()) + sum(
            t.calls for t in tasks
        )
        assert before.outcomes.items() <= search.outcomes.items()
        assert search.choice is not None and before.choice is not None
        assert before.choice.key in {row.key for row in search.choice.candidates}
        state = json.loads(json.dumps(search.state(), allow_nan=False))
        assert Search.from_state(state, search.spec).choice == search.choice
        assert Search.from_state(state).choice == search.choice


def test_the_further_run_goes_on_where_the_choice_was_and_anneals_anew() -> None:
    search, _ = run(SweepSpec(NonConvex(), 2000))
    more, tasks = extended(search, 6000)
    assert search.choice is not None and more.choice is not None
    assert more.spec.extends == (2000,)
    parts = segments(tasks, "extended1-final")
    chosen = search.choice.key
    _, call, _ = place_of(chosen)
    assert parts[0].origin == chosen and parts[0].start == call
    assert parts[0].arm.value == search.choice.chosen.value
    assert all(part.anneal == (call, parts[-1].stop) for part in parts)
    assert sum(part.calls for part in parts) > 0.9 * 4000
    # Fresh samples: none that an earlier race has seen.
    old = [s.stop for t in search.tasks.values() if isinstance(t, ScoreTask) for s in t.samples]
    new = [sample.start for task in tasks if isinstance(task, ScoreTask) for sample in task.samples]
    assert min(new) >= max(old)


def test_an_extension_that_is_cut_off_returns_the_earlier_choice() -> None:
    search, _ = run(SweepSpec(NonConvex(), 2000))
    assert search.choice is not None
    more = Search.from_state(search.state(), replace(search.spec, budget=6000), extend=True)
    while not isinstance(step := more.ask(), Step):
        assert more.leader == more.partial().key == search.choice.key
        more.tell(step, answer(step))


def test_what_cannot_be_extended_says_so_in_one_sentence() -> None:
    paper, _ = run(SweepSpec(Convex(), 2000, "paper"))
    with pytest.raises(InputError, match=r"'paper' makes its plan for one budget, .* to 3000"):
        extended(paper, 3000)
    search, _ = run(SweepSpec(NonConvex(), 2000))
    with pytest.raises(InputError, match="budget 2000 became 1000"):
        extended(search, 1000)
    with pytest.raises(InputError, match="seed 0 became 1"):
        Search.from_state(search.state(), replace(search.spec, seed=1, budget=3000), extend=True)
    with pytest.raises(InputError, match="has not ended: budget 2000 became 3000"):
        extended(Search(SweepSpec(NonConvex(), 2000)), 3000)
    with pytest.raises(InputError, match="extends: got 2000"):
        replace(search.spec, extends=(2000,))


# ---- with torch ------------------------------------------------------------------------------

CALLS = [0]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    CALLS[0] += 1
    if CALLS[0] == CALLS[-1] and len(CALLS) > 1:
        raise KeyboardInterrupt
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def problem() -> gt.TorchProblem:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 6, generator=generator)
    y = torch.tanh(x @ torch.randn(6, 2, generator=generator))
    return gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
        loss=loss,
        data=(x, y),
        batch_size=16,
        device="cpu",
    )


def full_loss(result: gt.Result) -> float:
    x, y = problem().data  # type: ignore[misc]
    with torch.no_grad():
        return float(nn.functional.mse_loss(result.model(x), y))


def tensors(result: gt.Result) -> list[Tensor]:
    return [result.tensors[name] for name in sorted(result.tensors)]


def test_a_sweep_is_extended_twice_in_its_folder_and_gets_better(tmp_path: Path) -> None:
    found = list[gt.Result]()
    for budget in (150, 500, 1200):
        CALLS[:] = [0]
        made = sum(found[-1].calls.values()) if found else 0
        found.append(gt.minimize(problem(), budget, out=tmp_path, progress=False))
        assert found[-1].calls["repeated"] == 0
        assert made + CALLS[0] == sum(found[-1].calls.values()) <= budget
    assert found[-1].spec["extends"] == [150, 500]
    for before, after in pairwise(map(full_loss, found)):
        assert after < before
    loaded = gt.Result.load(tmp_path)
    assert loaded.spec == found[-1].spec
    CALLS[:] = [0]
    again = gt.minimize(problem(), 1200, out=tmp_path, progress=False)  # nothing is left to do
    assert CALLS == [0] and all(map(torch.equal, tensors(again), tensors(found[-1])))


@pytest.mark.parametrize("stop", [30, 170, 345])
def test_an_interrupted_extension_goes_on_bit_for_bit(tmp_path: Path, stop: int) -> None:
    results = []
    for name, interrupted in (("whole", False), ("cut", True)):
        CALLS[:] = [0]
        gt.minimize(problem(), 150, out=tmp_path / name, progress=False)
        if interrupted:
            CALLS[:] = [0, stop]
            with pytest.raises(KeyboardInterrupt):
                gt.minimize(problem(), 500, out=tmp_path / name, progress=False)
        CALLS[:] = [0]
        results.append(gt.minimize(problem(), 500, out=tmp_path / name, progress=False))
    assert all(map(torch.equal, *map(tensors, results)))
    assert results[0].choice == results[1].choice
