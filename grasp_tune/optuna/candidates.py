"""Candidates as artifacts of trials, for objectives of the user's own."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.artifacts import get_all_artifact_meta, upload_artifact
from optuna.artifacts._protocol import ArtifactStore
from optuna.trial import FrozenTrial, TrialState
from torch import nn

from grasp_tune.core.checkpoint_keys import iterate_key
from grasp_tune.core.plan import Cell
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.tensor_file import Content
from grasp_tune.executors.study import cell_on, trials_of

MIMETYPE = "application/octet-stream"  # safetensors has no registered type
_NAME = re.compile(r"grasp-candidate-(\d{9})\.safetensors")


@dataclass(frozen=True, slots=True)
class Upload:
    """A candidate that a trial left."""

    key: str  # the name that the ensemble knows it by
    cell: Cell
    call: int  # after how many oracle calls of its run
    trial: int
    artifact: str


def upload_candidate(
    trial: optuna.Trial, model: nn.Module, artifact_store: ArtifactStore, *, call: int
) -> str:
    """Return the id of an artifact that holds the model as it is now, as tensors."""
    content = Content.of(model_tensors(model), {})
    with tempfile.TemporaryDirectory(prefix="grasp-tune-") as folder:
        path = Path(folder) / f"grasp-candidate-{call:09d}.safetensors"
        with path.open("wb") as file:
            content.write(file)
        return upload_artifact(
            artifact_store=artifact_store,
            file_path=str(path),
            study_or_trial=trial,
            mimetype=MIMETYPE,
        )


def uploads_of(study: optuna.Study) -> list[Upload]:
    """Return what the completed trials of a plan left, by cell and call."""
    found: dict[str, Upload] = {}
    for trial in trials_of(study):
        cell = cell_on(trial)
        if cell is None or trial.state != TrialState.COMPLETE:
            continue
        for call, artifact in _artifacts(study, trial):
            key = str(iterate_key(cell.index, call))
            found.setdefault(key, Upload(key, cell, call, trial.number, artifact))
    return [found[key] for key in sorted(found)]


def _artifacts(study: optuna.Study, trial: FrozenTrial) -> list[tuple[int, str]]:
    metas = get_all_artifact_meta(trial, storage=study._storage)
    pairs = [(_NAME.fullmatch(meta.filename), meta.artifact_id) for meta in metas]
    return [(int(match[1]), artifact) for match, artifact in pairs if match]
