"""The budget of a trial as a loop: counts oracle calls and ends normally."""

from typing import TYPE_CHECKING

import optuna

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell
from grasp_tune.executors.study import CALLS, CELL, cell_on, is_surplus

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore
    from torch import nn


class Budget:
    """Iterates over the oracle calls of one trial: 0, 1, 2, ... or every `per_step`-th."""

    def __init__(
        self, trial: optuna.Trial, cell: Cell | None, total: int, keep: tuple[int, ...], step: int
    ) -> None:
        self.trial, self.cell, self.total, self.keep = trial, cell, total, keep
        self.spent = 0  # oracle calls, those of the step under way included
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
        return self.done

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
        if due:
            from grasp_tune.optuna.candidates import upload_candidate

            for call in due:
                upload_candidate(self.trial, model, artifact_store, call=call)
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
    if is_surplus(trial):
        raise optuna.TrialPruned("every cell of the plan has been given to a trial")
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
