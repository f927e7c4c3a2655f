"""What a trial is given and what it reports: one task, and what a person sees of it.

Work is known by what stands in the config, never by the id of a trial: a trial that Tune restarts
gets another id, and does the same work.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial

from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.runtime.shared_sweep import SELECT, Selection, Work

KEY = "grasp"  # the one key in a trial's config that is ours
FOLDER = "grasp"  # of all sweeps, below the experiment's folder
HEARTBEAT = 30.0  # seconds between two reports of a task under way


def to_config(work: Work, metric: str | None = None) -> dict[str, Any]:
    """Return the config of the trial that does this work.

    metric: what a function of the user's own reports; Tune wants it in every row.
    """
    words = {**describe(work.task), "run": work.run, "attempt": work.attempt}
    words |= {} if metric is None else {"metric": metric}
    return {KEY: {**words, "work": work}}


def work_in(config: Mapping[str, Any]) -> Work:
    """Return the work that `to_config` wrote."""
    own = config.get(KEY)
    if not isinstance(own, Mapping) or not isinstance(own.get("work"), Work):
        raise InputError(
            f"config: there is no {KEY!r} in it; run this trainable with "
            "search_alg=GraspSearcher(...)"
        )
    return own["work"]


def report(work: Work, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result row as Tune wants it: every row has every column.

    `score` and `loss` are numbers in the last trial only, so that whoever asks Tune for the best
    trial by either of them is given the chosen model, never a training run.
    """
    words = describe(work.task)
    columns = dict.fromkeys(("score", "loss", "train_loss", "gradient_norm"), math.nan)
    names = {"task": words["task"], "phase": words["phase"], "oracle_calls": 0}
    return {**names, **columns, "run": work.run, "attempt": work.attempt, **found}


def describe(task: Task | Selection) -> dict[str, Any]:
    """Return what a person wants to know of a task: phase, cell, value, budget."""
    if isinstance(task, Selection):
        return {"task": task.id, "phase": SELECT, "budget": 0}
    words: dict[str, Any] = {"task": task.id, "phase": task.phase, "budget": task.calls}
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
        return trial_name(trial)
    calls = f"{words['budget']}calls" if words.get("budget") else None
    parts = [words.get("task"), words.get("base"), words.get("value"), calls, trial.trial_id]
    return folder_name("_".join(str(part) for part in parts if part))


def folder_name(name: str) -> str:
    """Return a name that a folder may have; an optimizer of the user's may be called anything."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", name)[:200]
