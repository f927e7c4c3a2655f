"""What a trial is given: one task in a trial's config, and what a person sees of it.

The task itself travels as one JSON text, so that Tune's tables and folder names are not flooded by
it; the entries beside it say in words what it is. Work is known by what stands here, never by the
id of a trial: a trial that Tune restarts gets another id, and does the same work.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray.tune.experiment import Trial

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import method_from_dict
from grasp_tune.core.records import Json
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Task, TrainTask, phase_of, task_from_dict, task_to_dict
from grasp_tune.optimizers.registry import Factory

KEY = "grasp"  # the one key in a trial's config that is ours
SELECT = "select"  # id and phase of the last trial, which leaves the chosen model


@dataclass(frozen=True, slots=True)
class Selection:
    """The last trial's work: put the chosen model where Tune's users find it."""

    key: str  # the chosen checkpoint
    failures: Mapping[str, list[str]]  # with the outcomes in the storage, the rest of the search
    id: str = SELECT
    calls: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """Checkpoints that must exist before it starts."""
        return (self.key,)


@dataclass(frozen=True, slots=True)
class Work:
    """One trial's work, with everything that a worker needs besides the problem."""

    run: str  # which sweep; its folder in the storage
    task: Task | Selection
    spec: dict[str, Json]
    attempt: int = 0  # above 0: done before, but what it left is lost

    def to_config(self, bases: Mapping[str, Factory]) -> dict[str, Any]:
        """Return the trial's config."""
        task = self.task
        content: dict[str, Json] = {"spec": self.spec}
        if isinstance(task, Selection):
            content["select"] = {"key": task.key, "failures": dict(task.failures)}
        else:
            content["task"] = task_to_dict(task)
        config: dict[str, Any] = {
            **describe(task),
            "run": self.run,
            "attempt": self.attempt,
            "work": json.dumps(content),
        }
        if bases:
            config["bases"] = dict(bases)
        return {KEY: config}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Work":
        """Return the work that `to_config` wrote."""
        own = config.get(KEY)
        if not isinstance(own, Mapping) or "work" not in own:
            raise InputError(
                f"config: there is no {KEY!r} in it; run this trainable with "
                "search_alg=GraspSearcher(...)"
            )
        content = json.loads(own["work"])
        task: Task | Selection
        if "select" in content:
            task = Selection(content["select"]["key"], content["select"]["failures"])
        else:
            task = task_from_dict(content["task"])
        return cls(str(own["run"]), task, content["spec"], int(own["attempt"]))


def spec_from_dict(data: Mapping[str, Json], bases: Mapping[str, Factory]) -> SweepSpec:
    """Return the spec, its base optimizer taken from `bases` where it is the user's own."""
    method = data["method"]
    base = bases.get(method["base"]) if isinstance(method, dict) else None
    if base is None:
        return SweepSpec.from_dict(dict(data))
    plain = SweepSpec.from_dict({**data, "method": {**method, "base": None}})
    return replace(plain, method=method_from_dict(method, base))


def describe(task: Task | Selection) -> dict[str, Any]:
    """Return what a person wants to know of a task: phase, cell, value, budget."""
    if isinstance(task, Selection):
        return {"task": task.id, "phase": SELECT, "budget": 0}
    words: dict[str, Any] = {"task": task.id, "phase": phase_of(task), "budget": task.calls}
    if isinstance(task, TrainTask):
        arms = [segment.arm for segment in task.segments]
        words["base"] = "+".join(dict.fromkeys(arm.base.rpartition(".")[2] for arm in arms))
        words["cell"] = _span([arm.index for arm in arms], "d")
        words["value"] = _span([arm.value for arm in arms], ".3g")
    return words


def _span(values: list[Any], form: str) -> str:
    low, high = min(values), max(values)
    return f"{low:{form}}" if low == high else f"{low:{form}}to{high:{form}}"


def trial_name(trial: Trial) -> str:
    """Return what Tune's tables call a trial: its task."""
    words = trial.config.get(KEY)
    task = words.get("task") if isinstance(words, Mapping) else trial.trainable_name
    return f"{task}_{trial.trial_id}"


def trial_folder(trial: Trial) -> str:
    """Return the name of a trial's folder, such as `train-run007_sgd_0.0123_120calls_2b9c1f04`."""
    words = trial.config.get(KEY)
    if not isinstance(words, Mapping):
        return f"{trial.trainable_name}_{trial.trial_id}"
    parts = [words.get("task"), words.get("base"), words.get("value")]
    if words.get("budget"):
        parts.append(f"{words['budget']}calls")
    name = "_".join(str(part) for part in [*parts, trial.trial_id] if part)
    # An optimizer of the user's own may be called anything; a folder may not.
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", name)[:200]


def report(work: Work, status: str, calls: int, **metrics: float) -> dict[str, Any]:
    """Return a result row as Tune wants it: every row has every column.

    `score` and `loss` are numbers in the last trial only, so that whoever asks Tune for the best
    trial by either of them is given the chosen model, never a training run.
    """
    words = describe(work.task)
    columns = dict.fromkeys(("score", "loss", "train_loss", "gradient_norm"), math.nan)
    return {
        "task": words["task"],
        "phase": words["phase"],
        "oracle_calls": calls,
        **columns,
        **metrics,
        "run": work.run,
        "attempt": work.attempt,
        "status": status,
    }
