"""Inside an objective of the user's own: the whole method, task by task, or all of it at once.

With `TaskSampler` each trial is given one task of the method. What the task found is written on its
trial, which ends pruned: it is no result. The last trial has the chosen weights; its value counts.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import optuna
from optuna.artifacts._protocol import ArtifactStore
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.executors.optuna import ERROR, LOST, NOTHING, RESULT, StudyLog
from grasp_tune.executors.study import Timing, set_trial
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.optuna.assignments import Assignments, StudySampler, addressed
from grasp_tune.optuna.runner import sweep_on, write_choice
from grasp_tune.runtime.result import Result


def optimizer(trial: optuna.Trial, model: Groups) -> TaskOptimizer:
    """Return the optimizer of this trial, in an objective of a study with a `TaskSampler`.

        def objective(trial):
            model = ...
            opt = grasp_tune.optuna.optimizer(trial, model)
            while not opt.done:
                ...  # one step of any training loop: zero_grad(), loss.backward(), opt.step(loss)
            return evaluate(model)  # reached in the last trial, with the chosen weights

        study = optuna.create_study(sampler=TaskSampler(budget=10_000))
        study.optimize(objective)  # ends by itself

    trial: what the objective was given.
    model: the model, its parameters, or parameter groups; on its device, with its first weights.
    """
    sampler = trial.study.sampler
    if not isinstance(sampler, TaskSampler):
        raise InputError(
            f"the study's sampler is a {type(sampler).__name__}, which hands out no tasks; make "
            "the study with sampler=grasp_tune.optuna.TaskSampler(budget=10_000)"
        )
    return TaskOptimizer(model, sampler.task_of(trial))


def train(trial: optuna.Trial, problem: TorchProblem, budget: int, **how: Any) -> float:
    """Train a problem without a learning rate, and return its loss: an objective in one line.

        def objective(trial):
            width = trial.suggest_int("width", 8, 512, log=True)
            return grasp_tune.optuna.train(trial, make_problem(width), budget=1_000)

    trial: is reported the best loss after each part of the training, so that pruners work, and
        holds `oracle_calls` and the chosen `step` as user attributes.
    problem: what the trial's other parameters make of model, loss and data.
    budget: T, the oracle calls of this trial.
    how: method, schedule, seed and ensemble, as `grasp_tune.minimize` takes them.

    The loss is that of fresh minibatches, or of `validation` where the problem has it.
    """

    def report(part: int, best: float) -> None:
        trial.report(best, part)
        if trial.should_prune():
            raise optuna.TrialPruned(f"after part {part} of its training")

    _, found = train_in_trial(problem, budget, report, **how)
    loss = found.pop("loss")
    for name, value in found.items():
        trial.set_user_attr(name, value)
    return loss if math.isfinite(loss) else math.inf  # Optuna takes NaN for a failure


class TaskSampler(StudySampler):
    """Runs the whole method on an objective that calls `grasp_tune.optuna.optimizer(trial, model)`.

    budget: T, the oracle calls (steps of the objective's loop) over all trials.
    method: `NonConvex()` by default; `Convex` or `ConvexFree`.
    schedule: `promote` by default; `paper` is the paper's algorithm to the letter.
    seed: fixes the method's choices, the minibatches of a shuffling loader, and the values of other
        parameters that the objective suggests: they are the same in all trials.
    artifact_store: where checkpoints go; needed unless the study lives in this process's memory.
    timing: how often a worker says that it lives, and after how long a silence another takes its
        task over; by default the storage's heartbeat settings, or 5 and 60 seconds.
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
        super().__init__()
        self._spec, bases = SweepSpec.assemble(method, budget, schedule, seed, probe_parts=1)
        check_spec(self._spec, bases)
        self._artifacts, self._timing = artifact_store, timing

    def _open(self, study: optuna.Study) -> "_MethodAssignments":
        sweep, store = sweep_on(study, self._spec, self._artifacts)
        log, search = StudyLog(study, sweep), Search(self._spec)
        return _MethodAssignments(log, search, self._timing, store=store)

    def _on(self, study: optuna.Study) -> "_MethodAssignments":
        found = self.assignments(study)
        assert isinstance(found, _MethodAssignments)
        return found

    def task_of(self, trial: optuna.Trial) -> "ObjectiveTrial":
        """Return the trial with its task, for `optimizer`."""
        return ObjectiveTrial(self._on(trial.study), trial, self._spec.seed)

    def result(self, study: optuna.Study) -> Result:
        """Return the result; the best so far, marked partial, where the search has not ended."""
        found = self._on(study)
        return found.result(lambda key: found.checkpoints.read(key).tensors)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value that is the same in all trials: they train one model."""
        return addressed(study, trial, param_distribution, param_name, self._spec.seed)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study's loop when the search is over; say so where a loop ended early."""
        found, complete = self._on(study), state == TrialState.COMPLETE
        task = found.task(trial.number)
        found.forget(trial.number)
        if task == NOTHING:
            complete = found.learn() is Step.DONE
        elif task != RESULT and complete:
            set_trial(study, trial._trial_id, ERROR, "its loop ended early")
            raise InputError(
                f"the objective ended in the middle of {task} (trial {trial.number}): make its "
                "optimizer with grasp_tune.optuna.optimizer(trial, model), and loop until opt.done"
            )
        if task in (NOTHING, RESULT) and complete:
            with contextlib.suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()


class _MethodAssignments(Assignments):
    """The whole method's tasks on a study; the last trial has the chosen weights."""

    search: Search
    _missed: frozenset[int] = frozenset()  # turns of the last trial that did not read the choice

    @property
    def checkpoints(self) -> Any:
        assert self.store is not None
        return self.store

    def last(self) -> tuple[Any, int] | None:
        turn, holder = self.log.result_turn()
        for at in set(range(turn)) - self._missed:
            trial = self.log.at(RESULT, at)
            if trial is not None and (key := trial.system_attrs.get(LOST)) is not None:
                self._missed |= {at}
                self.search.make_again(key)
                self.learn()
                return next(iter(self._board.unclaimed()), None)
        return (NOTHING, 0) if holder is not None else (RESULT, turn)

    def result(self, place: Callable[[str], Tensors]) -> Result:
        """Return the result; `place` gives the tensors of a checkpoint."""
        with self._lock:
            self.learn()
            tensors = place(self.search.partial().key)
            self.ledger.settle(self.log.calls)
            return Result.of(self.search, tensors)


class ObjectiveTrial:
    """A trial of an objective; see `loop.task_optimizer.TaskTrial`."""

    def __init__(self, found: _MethodAssignments, trial: optuna.Trial, seed: int) -> None:
        self._found, self._trial, self.seed, self.store = found, trial, seed, found.checkpoints
        key = found.task(trial.number)
        if key == NOTHING:
            raise optuna.TrialPruned("the search is over, and the chosen weights have a trial")
        self.task: Task | None = None if key == RESULT else found.search.tasks[key]

    def select(self, place: Callable[[str], Tensors]) -> Result:
        """Write on the trial what was chosen; the objective goes on."""
        result = self._found.result(place)
        write_choice(self._found.study, result)
        chosen = result.choice.chosen
        for name, value in (("base", chosen.base), ("step", chosen.value)):
            self._trial.set_user_attr(name, value)
        return result

    def called(self, calls: int) -> None:
        """Note it for the heartbeat."""
        self._found.own[self._trial.number].calls = calls

    def end(self, outcome: Outcome) -> NoReturn:
        """Write the outcome on the trial, and end it."""
        assert self.task is not None
        self._found.log.write_outcome(self._trial._trial_id, outcome)
        raise optuna.TrialPruned(f"{self.task.id} has ended; a part of the search is no result")

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Have a lost checkpoint made again; anything else is the user's to see."""
        try:
            yield
        except CheckpointError as error:
            if error.key is None or (self.task is not None and error.key not in self.task.reads):
                raise
            set_trial(self._found.study, self._trial._trial_id, LOST, error.key)
            raise optuna.TrialPruned(f"checkpoint {error.key} is lost: it is made again") from None
