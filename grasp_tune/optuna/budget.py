"""The budget of a trial as a loop, and the candidates that it leaves as artifacts."""

from collections.abc import Iterator

from optuna import Trial
from optuna.artifacts._protocol import ArtifactStore
from torch import nn

from grasp_tune.core.checkpoint_keys import iterate_key
from grasp_tune.core.errors import InputError
from grasp_tune.core.validation import whole
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.executors.optuna import artifact_checkpoints
from grasp_tune.executors.study import CALLS, fingerprint, label_of
from grasp_tune.optuna.study_sampler import prune_surplus


class Budget:
    """Iterates over the oracle calls of one trial: 0, 1, 2, ... or every `per_step`-th.

    With `GraspSampler(..., resume=True)` a trial may go on from an earlier one: `parent` is the
    number of the trial whose checkpoint the objective loads, and the calls are counted from
    `start`; `parent` is None where the trial begins at x0.
    """

    def __init__(self, trial: Trial, total: int, step: int) -> None:
        label = label_of(trial)
        self.total: int = label.get("budget", total)
        self.keep: tuple[int, ...] = tuple(label.get("keep", ()))
        self.start: int = label.get("start", 0)
        self.parent: int | None = label.get("parent")
        self.spent = 0  # oracle calls of this trial, those of the step under way included
        self.done = 0  # oracle calls of the steps that are behind us
        self._trial, self._step, self._kept = trial, step, set[int]()

    def __iter__(self) -> Iterator[int]:
        while self.spent + self._step <= self.total:
            self.done, self.spent = self.spent, self.spent + self._step
            yield self.start + self.done
        self.done = self.spent
        self.close()

    def close(self) -> None:
        """Write on the trial what it used; the loop does so at its end, a `break` does not."""
        self._trial.set_user_attr(CALLS, self.spent)

    def offer(self, model: nn.Module, artifact_store: ArtifactStore) -> bool:
        """Upload the model where its iterate is one that the plan wants; return whether it was.

        Call it first thing in each step, and once after the loop.
        """
        at_end = self.done + self._step > self.total
        due = {call for call in self.keep if call <= self.done or at_end} - self._kept
        label = label_of(self._trial)
        for call in due:
            sweep = fingerprint(self._trial.study.study_name, label["sweep"])
            key = str(iterate_key(label["index"], call))
            artifact_checkpoints(artifact_store, sweep).write(key, model_tensors(model), {})
        self._kept |= due
        return bool(due)


def grasp_budget(trial: Trial, *, per_step: int = 1, calls: int | None = None) -> Budget:
    """Return the trial's oracle calls as an iterator that ends normally, so that it completes.

    trial: what the objective was given.
    per_step: oracle calls of one optimizer step; 2 for UniXGrad.
    calls: the budget of a trial that has no cell because its value was enqueued.

    Raises `TrialPruned` in a trial for which no cell was left.
    """
    whole("per_step", per_step)
    prune_surplus(trial)
    if not label_of(trial).get("index") and calls is None:
        raise InputError(
            f"trial {trial.number} has no cell: its study has no GraspSampler, or its value was "
            "enqueued; say its budget: grasp_budget(trial, calls=...)"
        )
    return Budget(trial, calls or 0, per_step)
