"""The ensemble for studies whose objective is the user's own: fresh samples at its uploads."""

import math
import warnings
from dataclasses import replace
from typing import Literal

import optuna
from optuna.artifacts._protocol import ArtifactStore
from optuna.trial import TrialState

from grasp_tune.core.certificate import certify
from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import Tally, best, tallied, uniform_samples
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    ProbeOutcome,
    ProbeTask,
    Score,
    ScoreOutcome,
    ScoreTask,
)
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.executors.study import CALLS, fingerprint, trials_of
from grasp_tune.optuna.artifacts import artifact_checkpoints
from grasp_tune.optuna.budget import Upload, uploads_of
from grasp_tune.optuna.figures import cell_runs
from grasp_tune.optuna.plans import StoredPlan, stored_plan
from grasp_tune.optuna.runner import write_choice
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.paper import scored, start_candidate


def select(
    study: optuna.Study,
    problem: TorchProblem,
    artifact_store: ArtifactStore,
    *,
    by: Literal["loss", "gradient"] = "loss",
    method: Method | None = None,
) -> Result:
    """Return the best of the candidates that the trials uploaded, scored on fresh samples.

    The choice and its certificate are written on the study. Costs what the plan sets aside for the
    choice, and the probe at x0 where the plan was not made by `GraspSampler.for_problem`.

    problem: the same model, loss and data as the objective's.
    artifact_store: where the trials uploaded their candidates.
    by: `loss` compares losses: of `validation` where the problem has it, else of fresh training
        minibatches. `gradient` is the paper's rule for a plan of `NonConvex`: the norm of the mean
        gradient, which is also small where a network is dead.
    method: needed only where the plan's method has a base optimizer of the user's own.
    """
    if by not in ("loss", "gradient"):
        raise InputError(f"by: got {by!r}, expected 'loss' or 'gradient'")
    stored = stored_plan(study)
    if stored is None:
        raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler")
    plan = stored.plan
    if plan is None:
        raise InputError(
            f"study {study.study_name!r} searched a step without a plan, which leaves no calls for "
            "fresh samples: its longest trial, study.best_trial as a rule, is the choice"
        )
    score: Score = "gradient" if by == "gradient" and plan.score == "gradient" else "value"
    spec = SweepSpec.of_plan(plan, stored.seed, method=method)
    uploads = {item.key: item for item in uploads_of(study)}
    if not uploads:
        raise InputError(
            f"study {study.study_name!r} has no candidates: let the objective call "
            "budget.offer(model, artifact_store) in each step of grasp_budget and after the last"
        )
    sweep = fingerprint(study.study_name, stored.mark)
    store = artifact_checkpoints(artifact_store, lambda key: uploads[key].artifact, sweep)
    worker = Worker(problem, stored.seed, store)
    start, probe_calls = _start(stored, worker)
    rows = [start_candidate(start, score)]
    rows += [_candidate(study, plan, item) for item in uploads.values()]
    rows, calls = _score(plan, worker, rows, score)
    choice = _choose(study, plan, rows, score, start, uploads)
    worker.place(choice.key)
    runs = tuple(
        replace(run, stretches=((0, run.calls),), losses=run.losses[-1:])
        for run in cell_runs(study)
    )
    result = Result(
        spec=spec.to_dict(),
        choice=choice,
        plan=plan,
        certificate=certify(spec, choice),
        calls={
            "probe": probe_calls,
            "train": sum(run.calls for run in runs),
            "ensemble": calls,
            "repeated": _repeated(study),
        },
        runs=runs,
        tensors={name: item.cpu().clone() for name, item in model_tensors(worker.model).items()},
        build=lambda: problem.build(stored.seed),
    )
    upload = uploads.get(choice.key)
    write_choice(
        study,
        result,
        trial=None if upload is None else upload.trial,
        artifact=None if upload is None else upload.artifact,
    )
    return result


def _start(stored: StoredPlan, worker: Worker) -> tuple[ProbeOutcome, int]:
    """Return what is known of x0 and what it cost: the probe of the plan, made now if need be."""
    if stored.probe is not None:
        if stored.probe.origin != worker.origin:
            raise InputError(
                "problem: its model starts from another point than the one that was probed; seed "
                "whatever `model` draws, or load its weights from a file"
            )
        return stored.probe, stored.probe.calls
    plan = stored.plan
    assert plan is not None
    gradients, values = (0, plan.probe_gradients), (0, plan.probe_values)
    task = ProbeTask("probe", gradients, values, exact=plan.ensemble == "exact")
    outcome = worker.run(task)
    assert isinstance(outcome, ProbeOutcome)
    return outcome, outcome.calls


def _candidate(study: optuna.Study, plan: Plan, item: Upload) -> Candidate:
    found = trials_of(study)[item.trial].value
    value = math.nan if found is None else float(found)
    # Without fresh samples the objective's own value is all there is to go by.
    score = value if plan.ensemble == "window" else math.nan
    # A run that stopped being finite loses the points that it reached, too.
    note = "" if math.isfinite(value) else "diverged"
    cell = item.cell
    return Candidate(
        item.key, cell.index, "", cell.value, item.call, False, score, 0, math.nan, note
    )


def _score(
    plan: Plan, worker: Worker, rows: list[Candidate], by: Score
) -> tuple[list[Candidate], int]:
    """Return the candidates with their scores, and the oracle calls that these cost."""
    if plan.ensemble == "window":
        return rows, 0
    exact = plan.ensemble == "exact"
    samples = 1 if exact else plan.samples_per_candidate
    keys = [row.key for row in rows[1:] if not row.note]
    # The probe knows x0's gradient and its training loss; a validation loss it does not know.
    held_out = by == "value" and worker.oracle.problem.validation is not None and not exact
    if held_out:
        keys.append(START)
        samples = max(1, samples * (len(keys) - 1) // len(keys))
    tallies: dict[str, Tally] = {}
    calls = 0
    for sample in uniform_samples(keys, samples):
        task = ScoreTask(f"score-{sample.key}", by, (sample,), exact=exact)
        try:
            outcome = worker.run(task)
        except CheckpointError as error:
            if error.key is None:
                raise
            # An upload that was cut short leaves an entry without its bytes.
            rows = [replace(row, note="lost") if row.key == sample.key else row for row in rows]
            continue
        assert isinstance(outcome, ScoreOutcome)
        calls += outcome.calls
        tallied(outcome.samples, tallies, by)
    first = scored(rows[0], tallies) if held_out else rows[0]
    return [first, *(scored(row, tallies) for row in rows[1:])], calls


def _choose(
    study: optuna.Study,
    plan: Plan,
    rows: list[Candidate],
    by: Score,
    start: ProbeOutcome,
    uploads: dict[str, Upload],
) -> Choice:
    chosen = rows[best([row.score if not row.note else math.nan for row in rows])]
    notes = []
    if lost := sum(row.note == "lost" for row in rows):
        notes.append(f"{lost} candidates are lost: their artifacts cannot be read")
    if chosen.key == START:
        notes.append("no run beat the start point, so x0 is returned")
    elif by == "gradient":
        value = trials_of(study)[uploads[chosen.key].trial].value
        if value is not None and value > start.value:
            notes.append(
                f"the chosen run ended with a loss of {value:.4g}, above {start.value:.4g} at x0: "
                "a small gradient may be that of a dead network; choose by='loss'"
            )
            warnings.warn(notes[-1], stacklevel=3)
    # Whether the objective ran the paper's base optimizer is known to the user alone.
    return Choice(chosen.key, by, plan.ensemble, tuple(rows), covered=False, notes=tuple(notes))


def _repeated(study: optuna.Study) -> int:
    failed = [trial for trial in trials_of(study) if trial.state == TrialState.FAIL]
    return sum(int(trial.user_attrs.get(CALLS, 0)) for trial in failed)
