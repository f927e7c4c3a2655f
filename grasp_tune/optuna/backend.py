"""`OptunaBackend`: which study a sweep lives on, for `minimize(backend=...)`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.artifacts import FileSystemArtifactStore
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.optimizers.registry import Factory
from grasp_tune.optuna.processes import run_members
from grasp_tune.optuna.runner import NAME, Member, run_optuna
from grasp_tune.runtime.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaBackend:
    """How to keep a sweep on an Optuna study.

    storage: a database URL, or the path of a journal file; None: a journal in the output folder,
        or the memory of this process where there is none.
    study: its name in the storage. Every process that runs the same sweep on it takes part.
    workers: processes on this machine.
    """

    storage: str | None = None
    study: str = NAME
    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers: got {self.workers!r}, expected a whole number >= 1")

    def run(
        self,
        problem: TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None = None,
        bases: Mapping[str, Factory] | None = None,
        progress: bool = False,
    ) -> Result:
        """Return the result of the sweep; the same study again goes on where it was cut off."""
        if self.storage is None:
            return run_optuna(problem, spec, out=out, workers=self.workers, bases=bases)
        if out is None:
            raise InputError(
                "out: got None, but a study in a storage needs a folder for its checkpoints, one "
                "that every process of the study can reach"
            )
        folder = out / "artifacts"
        folder.mkdir(parents=True, exist_ok=True)

        def member() -> Member:
            artifacts = FileSystemArtifactStore(folder)
            study = self.open()
            return Member(study, problem, spec, artifacts, bases or {}, None, out=out)

        if self.workers > 1:
            run_members(member, self.workers)
        result = member().run()
        result.save(out)
        return result

    def open(self) -> optuna.Study:
        """Return the study, new or as it was left; SearchError where the storage cannot be used."""
        assert self.storage is not None
        try:
            storage: str | JournalStorage = self.storage
            if "://" not in self.storage:
                storage = JournalStorage(JournalFileBackend(self.storage))
            return optuna.create_study(study_name=self.study, storage=storage, load_if_exists=True)
        except Exception as error:  # whatever the database's driver raises
            # The message may quote the URL with its password, so only its kind is told.
            raise SearchError(
                f"the storage of the Optuna study {self.study!r} cannot be opened "
                f"({type(error).__name__}): check that the database runs, that the account may "
                "use it and that its driver is installed (pip install 'grasp_tune[storage]')"
            ) from None
