"""The method inside the user's own objective: one task per trial, or a whole sweep per trial.

With `TaskSampler` each trial runs one task, writes its outcome on the trial and is then pruned.
Only the last trial has a value: that of the chosen weights.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from optuna import Study, Trial, TrialPruned
from optuna.artifacts._protocol import ArtifactStore
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.search import Search
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.executors.optuna import sweep_on, write_choice
from grasp_tune.executors.study import Timing, label_of
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.optuna.study_sampler import Addressed, Assignments, StudySampler, prune_surplus
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.result import Result


def optimizer(trial: Trial, model: Groups) -> TaskOptimizer:
    """Return an optimizer that runs this trial's task; the study's sampler must be a `TaskSampler`.

        def objective(trial):
            model = ...
            opt = grasp_tune.optuna.optimizer(trial, model)
            while not opt.done:
                ...  # one step of any training loop: zero_grad(), loss.backward(), opt.step(loss)
            return evaluate(model)  # reached in the last trial, with the chosen weights

        study = optuna.create_study(sampler=TaskSampler(budget=10_000))
        study.optimize(objective)  # ends by itself

    trial: the argument of the objective.
    model: the model, its parameters, or parameter groups; on its device, with initial weights.
    """
    sampler = trial.study.sampler
    if not isinstance(sampler, TaskSampler):
        words = f"the study's sampler is a {type(sampler).__name__}, which hands out no tasks"
        advice = "make the study with sampler=grasp_tune.optuna.TaskSampler(budget=10_000)"
        raise InputError(f"{words}; {advice}")
    return TaskOptimizer(model, ObjectiveTrial(sampler, trial))


def train(trial: Trial, problem: TorchProblem, budget: int, **how: Any) -> float:
    """Train a problem without a learning rate in this trial, and return its loss.

        def objective(trial):
            width = trial.suggest_int("width", 8, 512, log=True)
            return grasp_tune.optuna.train(trial, make_problem(width), budget=1_000)

    The loss is over all rows of `validation`, or of the data if there is no validation data.

    trial: gets the best loss so far after each part of the training, so that pruners work, and
        `oracle_calls` and the chosen `step` as user attributes.
    problem: the model, loss and data for this trial's other parameters.
    budget: T, the oracle calls of this trial.
    how: method, schedule, seed and ensemble, as in `grasp_tune.minimize`.
    """
    if trial.study.directions == [StudyDirection.MAXIMIZE]:
        words = "make it with direction='minimize'"
        raise InputError(f"the study maximizes, but train returns a loss or 1 - metric; {words}")

    def report(part: int, best: float, calls: int) -> None:
        trial.report(best, part)
        if trial.should_prune():
            trial.set_user_attr("oracle_calls", calls)
            raise TrialPruned(f"after part {part} of its training")

    _, found = train_in_trial(problem, budget, report, **how)
    loss = found.pop("loss")
    for name, value in found.items():
        trial.set_user_attr(name, value)
    return loss if math.isfinite(loss) else math.inf  # Optuna treats NaN as a failed trial


class TaskSampler(StudySampler):
    """A sampler that runs the whole method on an objective which calls `optimizer(trial, model)`.

    budget: T, the oracle calls (steps of the objective's loop) of all trials.
    method, schedule: as in `grasp_tune.minimize`.
    seed: fixes the method's choices, the minibatches of a shuffling loader, and the values of other
        parameters that the objective suggests; these are the same in all trials.
    artifact_store, timing: as in `grasp_tune.optuna.run`.
    """

    def __init__(
        self,
        budget: int,
        method: Method | None = None,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        *,
        artifact_store: ArtifactStore | None = None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(Addressed(seed, each=False))  # all trials train one model
        self._spec, bases = SweepSpec.assemble(method, budget, schedule, seed, probe_parts=1)
        check_spec(self._spec, bases)
        self._artifacts, self._timing = artifact_store, timing

    def _open(self, study: Study) -> Assignments:
        log, store = sweep_on(study, self._spec, self._artifacts, self._timing)
        return Assignments(log, Search(self._spec), store=store)

    def result(self, study: Study, place: Callable[[str], Tensors] | None = None) -> Result:
        """Return the result; if the search has not ended, the best so far, marked as partial."""
        found = self.assignments(study).learn()
        key = found.search.partial().key
        tensors = found.best_tensors(found.store) if place is None else place(key)
        found.settle(found.log.calls)
        return Result.of(found.search, tensors)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        task = label_of(trial).get("task")
        if task and task != SELECT.id and state == TrialState.COMPLETE:
            words = f"the objective ended in the middle of {task} (trial {trial.number})"
            advice = "make its optimizer with grasp_tune.optuna.optimizer(trial, model)"
            error = InputError(f"{words}: {advice}, and loop until opt.done")
            self.assignments(study).log.write(trial._trial_id, error)
            raise error
        super().after_trial(study, trial, state, values)


class ObjectiveTrial:
    """The trial of an objective, as a `loop.task_optimizer.TaskTrial`."""

    def __init__(self, sampler: TaskSampler, trial: Trial) -> None:
        prune_surplus(trial)
        found = self._found = sampler.assignments(trial.study)
        self._sampler, self._trial = sampler, trial
        self.store, self.seed = found.store, found.search.spec.seed
        self.task: Task | None = found.search.tasks.get(label_of(trial).get("task", ""))

    def select(self, place: Callable[[str], Tensors]) -> Result:
        result = self._sampler.result(self._trial.study, place)
        write_choice(self._trial.study, result)
        self._trial.set_user_attr("base", result.choice.chosen.base)
        self._trial.set_user_attr("step", result.choice.chosen.value)
        return result

    def called(self, calls: int) -> None:
        self._found.held[self._trial.number].calls = calls  # for the heartbeat

    def end(self, outcome: Outcome) -> NoReturn:
        self._found.log.write(self._trial._trial_id, outcome)
        raise TrialPruned("its task has ended; a part of the search is no result")

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Have a lost checkpoint made again; any other error reaches the user."""
        try:
            yield
        except CheckpointError as error:
            if error.key is None or (self.task is not None and error.key not in self.task.reads):
                raise
            self._found.log.write(self._trial._trial_id, error)
            raise TrialPruned(f"checkpoint {error.key} is lost: it is made again") from None
