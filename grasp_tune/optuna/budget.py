"""The budget of a trial as a loop, and the candidates that it leaves as artifacts."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.artifacts import get_all_artifact_meta, upload_artifact
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.checkpoint_keys import iterate_key
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell
from grasp_tune.executors.study import CALLS, CELL, fingerprint, trials_of
from grasp_tune.optuna.sampler import cell_on, prune_surplus

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore
    from torch import nn


MIMETYPE = "application/octet-stream"  # safetensors has no registered type
_NAME = re.compile(r"grasp-candidate-(\d{9})\.safetensors")


class Budget:
    """Iterates over the oracle calls of one trial: 0, 1, 2, ... or every `per_step`-th.

    With `GraspSampler(..., resume=True)` a trial may go on from an earlier one: `parent` is the
    number of the trial whose checkpoint the objective loads, and the calls are counted from
    `start`; `parent` is None where the trial begins at x0.
    """

    def __init__(
        self, trial: optuna.Trial, cell: Cell | None, total: int, keep: tuple[int, ...], step: int
    ) -> None:
        self.trial, self.cell, self.total, self.keep = trial, cell, total, keep
        label = {} if cell is None else trial.user_attrs[CELL]
        self.start: int = label.get("start", 0)
        self.parent: int | None = label.get("parent")
        self.spent = 0  # oracle calls of this trial, those of the step under way included
        self.done = 0  # oracle calls of the steps that are behind us
        self._step = step
        self._kept: set[int] = set()

    def __iter__(self) -> "Budget":
        return self

    def __next__(self) -> int:
        self.done = self.spent
        if self.spent + self._step > self.total:
            self.close()
            raise StopIteration
        self.spent += self._step
        return self.start + self.done

    def close(self) -> None:
        """Write on the trial what it used; the loop does so at its end, a `break` does not."""
        self.trial.set_user_attr(CALLS, self.spent)

    def offer(self, model: "nn.Module", artifact_store: "ArtifactStore") -> bool:
        """Upload the model where its iterate is one that the plan wants; return whether it was.

        Call it first thing in each step, and once after the loop.
        """
        at_end = self.done + self._step > self.total
        due = [call for call in self.keep if call <= self.done or at_end]
        due = [call for call in due if call not in self._kept]
        for call in due:
            assert self.cell is not None  # else nothing is kept
            upload_candidate(self.trial, self.cell, model, artifact_store, call=call)
        self._kept.update(due)
        return bool(due)


def grasp_budget(trial: optuna.Trial, *, per_step: int = 1, calls: int | None = None) -> Budget:
    """Return the trial's oracle calls as an iterator that ends normally, so that it completes.

    per_step: oracle calls of one optimizer step; 2 for UniXGrad.
    calls: the budget of a trial that has no cell because its value was enqueued.

    Raises `TrialPruned` in a trial for which no cell was left.
    """
    if not isinstance(per_step, int) or isinstance(per_step, bool) or per_step < 1:
        raise InputError(f"per_step: got {per_step!r}, expected a whole number >= 1")
    prune_surplus(trial)
    cell = cell_on(trial)
    if cell is None:
        if calls is None:
            raise InputError(
                f"trial {trial.number} has no cell: its study has no GraspSampler, or its value "
                "was enqueued; say its budget: grasp_budget(trial, calls=...)"
            )
        return Budget(trial, None, calls, (), per_step)
    keep = tuple(int(call) for call in trial.user_attrs[CELL].get("keep", ()))
    return Budget(trial, cell, cell.budget, keep, per_step)


@dataclass(frozen=True, slots=True)
class Upload:
    """A candidate that a trial left."""

    key: str  # the name that the ensemble knows it by
    cell: Cell
    call: int  # after how many oracle calls of its run
    trial: int
    artifact: str


def upload_candidate(
    trial: optuna.Trial,
    cell: Cell,
    model: "nn.Module",
    artifact_store: "ArtifactStore",
    *,
    call: int,
) -> str:
    """Return the id of an artifact that holds the model as it is now, as tensors of the study."""
    from grasp_tune.engine.checkpoints import model_tensors
    from grasp_tune.engine.tensor_file import Content

    sweep = fingerprint(trial.study.study_name, trial.user_attrs[CELL]["sweep"])
    key = str(iterate_key(cell.index, call))
    content = Content.of(model_tensors(model), {}, key, sweep)
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
