"""The whole method from processes that share a storage and an artifact store, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore
from optuna.trial import TrialState

import grasp_tune as gt
from grasp_tune.executors.study import CHOICE
from grasp_tune.optuna import run

pytestmark = pytest.mark.xdist_group("postgres")

NAME = "sweep"
BUDGET = 300
METHOD = gt.Convex(L_eps=20.0, d_eps=0.2)


def take_part(place: object, problem: gt.TorchProblem, folder: Path) -> None:
    study = optuna.load_study(study_name=NAME, storage=place.open())  # type: ignore[attr-defined]
    store = FileSystemArtifactStore(folder)
    found = run(study, problem, BUDGET, METHOD, "paper", fused=False, artifact_store=store)
    assert json.dumps(found.to_dict()) == (folder / "expected").read_text()


def test_all_of_them_get_the_local_result(
    place: object, problem: gt.TorchProblem, in_processes: Callable[..., None], folder: Path
) -> None:
    expected = gt.minimize(problem, BUDGET, METHOD, "paper", fused=False, progress=False)
    (folder / "expected").write_text(json.dumps(expected.to_dict()))
    study = optuna.create_study(study_name=NAME, storage=place.look())  # type: ignore[attr-defined]
    try:
        in_processes(2, take_part, place, problem, folder)
        trials = study.get_trials(states=(TrialState.COMPLETE,))
        note = study.user_attrs[CHOICE]
        assert all(trial.state.is_finished() for trial in study.trials)
    finally:
        optuna.delete_study(study_name=NAME, storage=study._storage)
    tasks = [trial.user_attrs["task"] for trial in trials]
    assert len(tasks) == len(set(tasks)) > 5  # none was run twice
    # The choice and its certificate are on the study.
    assert note["candidate"]["key"] == expected.choice.key
    assert expected.certificate is not None
    assert note["certificate"]["text"] == expected.certificate.text
    assert note["calls"] == expected.calls
