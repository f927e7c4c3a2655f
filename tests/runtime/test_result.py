"""What a sweep gives back: read by people, saved, loaded, restored."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.worker import Worker
from grasp_tune.report.formatting import estimate
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import TemporaryStore
from grasp_tune.runtime.sweep_folder import load_search
from tests.engine import workbench

METHOD = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam")  # a search, many runs


@pytest.fixture(scope="module")
def result() -> Result:
    """A finished sweep over a model with buffers."""
    problem = workbench.problem(workbench.batch_norm)
    return gt.minimize(problem, 600, METHOD, seed=2, progress=False)


def test_the_model_stands_at_the_chosen_point_in_evaluation_mode(result: Result) -> None:
    assert isinstance(result.model, nn.Module)
    assert not result.model.training
    assert workbench.same_bits(model_tensors(result.model), result.tensors)
    assert result.model is result.model


def test_the_cell_is_the_winners_with_what_it_spent(result: Result) -> None:
    assert result.cell is not None
    chosen = result.choice.chosen
    run = next(run for run in result.runs if run.arm == chosen.arm)
    assert (result.cell.index, result.cell.value) == (chosen.arm, chosen.value)
    assert result.cell.budget == run.calls == sum(b - a for a, b in run.stretches)
    assert result.score == chosen.score


def test_runs_and_calls_agree(result: Result) -> None:
    assert sum(run.calls for run in result.runs) == result.calls["train"]
    for run in result.runs:
        calls = [call for call, _, _ in run.curve]
        assert calls == sorted(set(calls))
        assert not run.finite or calls[-1] == run.stretches[-1][1]


def test_the_table_has_a_line_for_each_run_the_chosen_first(result: Result) -> None:
    lines = result.table().splitlines()
    assert len(lines) == 1 + len(result.runs)
    assert lines[0].split() == ["run", "base", "value", "calls", "last", "loss", "score"]
    assert lines[1].endswith("<- chosen")
    assert "chosen" not in "".join(lines[2:])
    short = result.table(limit=3).splitlines()
    assert short[:4] == lines[:4]
    assert short[4] == f"... and {len(result.runs) - 3} more"


def test_a_result_is_readable_in_a_terminal_and_in_a_notebook(result: Result) -> None:
    assert repr(result).startswith(f"<Result: run {result.choice.chosen.arm} (")
    score, samples = estimate(result.score, result.error), result.choice.chosen.samples
    assert "±" in score and f" {score} over {samples} minibatches, " in repr(result)
    assert " minibatches of 359 rows, " in repr(replace(result, validation=359))
    assert "of 600 calls>" in repr(result)
    nasty = "<script>alert('x')</script> & co"
    noted = replace(result, choice=replace(result.choice, notes=(nasty,)))
    page = noted._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;Result" in page


def test_save_and_load_are_lossless(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    loaded = gt.Result.load(tmp_path, workbench.batch_norm)
    assert json.dumps(loaded.to_dict()) == json.dumps(result.to_dict())
    assert workbench.same_bits(loaded.tensors, result.tensors)
    assert loaded.table() == result.table()
    assert repr(loaded) == repr(result)
    x, _ = workbench.rows()
    assert torch.equal(loaded.model(x), result.model(x))
    loaded.save(tmp_path)  # over one of ours
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "model.safetensors"}
    (tmp_path / "result.json").unlink()  # a process that was killed between the two files
    loaded.save(tmp_path)
    assert gt.Result.load(tmp_path).score == result.score


def test_a_model_of_somebody_else_is_not_overwritten(result: Result, tmp_path: Path) -> None:
    theirs = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(3)}, theirs)
    before = theirs.read_bytes()
    with pytest.raises(InputError, match="may be somebody else's"):
        result.save(tmp_path)
    assert theirs.read_bytes() == before


def test_a_loaded_result_needs_to_know_how_the_model_is_built(
    result: Result, tmp_path: Path
) -> None:
    result.save(tmp_path)
    loaded = gt.Result.load(tmp_path)
    with pytest.raises(InputError, match=r"give Result\.load the function that builds the model"):
        _ = loaded.model
    restored = loaded.restore(workbench.batch_norm())
    assert workbench.same_bits(model_tensors(restored), result.tensors)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        loaded.restore(workbench.linear())


@pytest.mark.parametrize("content", ["{}", "[]", '{"format": 2}', "not json"])
def test_a_foreign_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(gt.GraspError, match=r"result\.json"):
        gt.Result.load(tmp_path)


def test_a_search_stopped_early_gives_its_leader_and_says_so() -> None:
    problem = workbench.problem(workbench.mlp)
    search = Search(SweepSpec(method=METHOD, budget=600, seed=2))
    worker = Worker(problem, 2, TemporaryStore())
    while not any(run.startswith("run") for run in (search.leader,)):
        task = search.ask()
        assert not isinstance(task, Step)
        search.tell(task, worker.run(task))
    worker.place(search.leader)
    stopped = Result.of(search, model_tensors(worker.model), lambda: problem.build(2))
    assert stopped.partial
    assert stopped.choice.key == search.leader
    assert "stopped early" in repr(stopped)
    assert math.isfinite(stopped.score)
    assert stopped.table()
    assert workbench.same_bits(model_tensors(stopped.model), stopped.tensors)


def test_where_the_start_wins_there_is_no_cell() -> None:
    problem = workbench.problem(lambda: _Still())
    result = gt.minimize(problem, 800, METHOD, schedule="paper", progress=False)
    assert result.cell is None
    assert result.choice.key == "x0"
    assert repr(result).startswith("<Result: x0, ")
    assert any("stationary" in note for note in result.notes)
    assert result.runs == ()
    assert result.table().count("\n") == 0


class _Still(nn.Module):
    """Its loss does not change with its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x), workbench.CLASSES) * self.weight


@pytest.mark.parametrize("by", ["loss", "metric"])
def test_a_result_of_outcomes_alone_knows_what_scored_it(by: str, tmp_path: Path) -> None:
    held: dict[str, Any] = {"validation": workbench.rows(seed=8), "metric": "accuracy"}
    full = gt.minimize(
        workbench.problem(**held, choose_by=by), 400, progress=False, out=tmp_path / "o"
    )
    found = Result.of(load_search(tmp_path / "o" / "state.json"), full.tensors)  # as in Ray Tune
    assert (found.validation, found.metric) == (0, None if by == "loss" else "metric")
    assert found.looks == full.looks and found.looks
    assert Result.load(tmp_path / "o").looks == full.looks
    assert ("validation loss" in repr(found)) == (by == "loss")
