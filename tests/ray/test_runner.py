"""`minimize(..., backend="ray")`: the facade's way in."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import grasp_tune as gt
from grasp_tune.ray import RayBackend, load_result
from grasp_tune.runtime.lock import folder_lock
from tests.ray.shop import linear_problem, same

FEW: dict[str, Any] = {
    "method": gt.Convex(d_eps=0.1, L_eps=0.1),
    "budget": 600,
    "schedule": "paper",
    "ensemble": "window",
    "fused": False,
}


def forget(experiment: Path) -> None:
    """Leave an experiment as a driver does that is killed before Tune's first snapshot of it."""
    for path in experiment.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "grasp":
            shutil.rmtree(path)


@pytest.mark.usefixtures("ray_session")
def test_minimize_through_ray_gives_the_same_bits_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    wanted = gt.minimize(linear_problem()(), progress=False, **FEW)

    def run() -> gt.Result:
        result = gt.minimize(linear_problem()(), backend="ray", out=out, **FEW)
        assert same(result, wanted)
        assert isinstance(result.model, nn.Linear)
        assert torch.equal(result.model.weight, wanted.model.weight)  # type: ignore[arg-type]
        return result

    for _ in range(2):  # the second finds everything done
        assert run().calls == wanted.calls
    assert same(gt.Result.load(out), wanted)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "grasp: done" in shown.err
    with pytest.raises(gt.InputError, match="budget 600 became 700"):
        gt.minimize(linear_problem()(), backend="ray", out=out, **{**FEW, "budget": 700})

    # What had ended is used although Tune has recorded nothing of it.
    forget(out / "ray")
    tasks = {path: path.stat().st_mtime_ns for path in out.glob("ray/grasp/*/outcomes/*.json")}
    assert len(tasks) > 5
    last = max(tasks)
    last.unlink()  # this one had not ended
    assert run().calls["repeated"] == json.loads(last.read_text())["outcome"]["outcome"]["calls"]
    kept = {path: path.stat().st_mtime_ns for path in tasks if path != last}
    assert kept.items() <= tasks.items()


def test_a_second_driver_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(gt.GraspError, match=f"process {os.getpid()} on"):
        gt.minimize(linear_problem()(), backend="ray", out=tmp_path, progress=False, **FEW)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_an_experiment_without_a_result_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(gt.SearchError, match="there is no result in it"):
        load_result(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"workers": 0}, "workers: got 0"), ({"max_failures": -1}, "max_failures: got -1")],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        RayBackend(**options)
