"""The ensemble for studies whose objective is the user's own: fresh samples at its uploads."""

import math
import warnings
from dataclasses import replace
from typing import Literal

from optuna import Study
from optuna.artifacts._protocol import ArtifactStore
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.checkpoint_keys import iterate_key
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    Point,
    ProbeOutcome,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    SegmentOutcome,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.engine.worker import Worker
from grasp_tune.executors.optuna import artifact_checkpoints, artifact_name, write_choice
from grasp_tune.executors.study import CALLS, fingerprint, label_of, trials_of
from grasp_tune.optuna.sampler import StoredPlan
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.paper import Paper


def select(
    study: Study,
    problem: TorchProblem,
    artifact_store: ArtifactStore,
    *,
    by: Literal["loss", "gradient"] = "loss",
    method: Method | None = None,
) -> Result:
    """Return the best of the candidates that the trials uploaded, scored on fresh samples.

    The choice and its certificate are written on the study. Costs what the plan sets aside for the
    choice, and the probe at x0 where the plan was not made by `GraspSampler.for_problem`.

    study: where the trials of a plan have ended.
    problem: the same model, loss and data as the objective's.
    artifact_store: where the trials uploaded their candidates.
    by: `loss` compares losses: of `validation` where the problem has it, else of fresh training
        minibatches. `gradient` is the paper's rule for a plan of `NonConvex`: the norm of the mean
        gradient, which is also small where a network is dead.
    method: needed only where the plan's method has a base optimizer of the user's own.
    """
    if by not in ("loss", "gradient"):
        raise InputError(f"by: got {by!r}, expected 'loss' or 'gradient'")
    name, stored = study.study_name, StoredPlan.on(study)
    if stored is None:
        raise InputError(f"study {name!r} has no plan of a GraspSampler")
    if (plan := stored.plan) is None:
        raise InputError(
            f"study {name!r} searched a step without a plan, which leaves no calls for fresh "
            "samples: its longest trial, study.best_trial as a rule, is the choice"
        )
    sweep = fingerprint(name, stored.mark)  # as `Budget.offer` calls it
    store = artifact_checkpoints(artifact_store, sweep)
    wanted = [iterate_key(index, call) for index, calls in stored.kept().items() for call in calls]
    if not any(store.exists(str(key)) for key in wanted):
        raise InputError(
            f"study {name!r} has no candidates: let the objective call "
            "budget.offer(model, artifact_store) in each step of grasp_budget and after the last"
        )
    own = [(label_of(trial), trial) for trial in trials_of(study)]
    own = [(label, trial) for label, trial in own if label.get("sweep") == stored.mark]
    done = ((label, item) for label, item in own if item.state == TrialState.COMPLETE)
    ended = {label["index"]: item for label, item in done if "void" not in label}
    spec = SweepSpec.of_plan(plan, stored.seed, method=method)
    search = Search(replace(spec, schedule=Paper(by_loss=by == "loss"), probe_parts=1))
    worker = Worker(checked_problem(problem), stored.seed, store)
    while not isinstance(task := search.ask(), Step):
        outcome: Outcome | None
        if isinstance(task, TrainTask):
            outcome = _trained(task, ended, worker.origin)
        elif isinstance(task, ScoreTask):
            outcome = _scored(task, worker)
        else:
            start = stored.probe or worker.run(task)
            assert isinstance(start, ProbeOutcome)
            given = {"gradient_norm": plan.grad_norm, "value": plan.value}  # the cells follow
            known = {name: value for name, value in given.items() if value is not None}
            outcome = replace(start, **known)  # type: ignore[arg-type]
        search.tell(task, outcome, "none of its trials has ended well")
    if lost := sum(not row.note and math.isnan(row.score) for row in search.partial().candidates):
        search.notes.append(f"{lost} candidates are lost: their artifacts cannot be read")
    failed = [trial for _, trial in own if trial.state == TrialState.FAIL]
    search.repeated = sum(int(trial.user_attrs.get(CALLS, 0)) for trial in failed)
    # Whether the objective ran the paper's base optimizer is known to the user alone.
    search.choice = replace(search.partial(), covered=False)
    worker.place(search.choice.key)
    result = Result.of(search, model_tensors(worker.model), lambda: problem.build(stored.seed))
    for note in result.notes:
        if "dead network" in note:
            warnings.warn(f"{note}; here: by='loss'", stacklevel=2)
    chosen = result.choice.chosen
    trial = ended[chosen.arm].number if chosen.arm else None
    write_choice(study, result, trial=trial, artifact=artifact_name(sweep, chosen.key))
    return result


def _trained(task: TrainTask, ended: dict[int, FrozenTrial], origin: str) -> TrainOutcome | None:
    """Return how the trial of a cell went, as if it had been a run of ours."""
    (segment,) = task.segments
    if (trial := ended.get(segment.arm.index)) is None:
        return None
    calls = min(int(trial.user_attrs.get(CALLS, segment.calls)), segment.calls)
    value = math.nan if trial.value is None else float(trial.value)
    marks = sorted(trial.intermediate_values.items())
    curve = tuple(Point(int(call), float(loss), math.nan) for call, loss in marks)
    finite = math.isfinite(value)
    run = SegmentOutcome(segment.arm.index, calls, finite, value, value, value, curve)
    return TrainOutcome(calls, origin, (run,))


def _scored(task: ScoreTask, worker: Worker) -> ScoreOutcome:
    """Return the scores; an upload that was cut short, or never made, has none."""
    found, calls = [], 0
    for sample in task.samples:
        try:
            outcome = worker.run(replace(task, samples=(sample,)))
        except CheckpointError as error:
            if error.key is None:
                raise
            found.append(SampleOutcome(sample.key, 0, math.nan, math.nan))
            continue
        assert isinstance(outcome, ScoreOutcome)
        found, calls = [*found, *outcome.samples], calls + outcome.calls
    return ScoreOutcome(calls, worker.origin, tuple(found))
