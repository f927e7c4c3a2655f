"""The result of a sweep: the model, how it was chosen, and what it cost."""

import html
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from grasp_tune.core.checkpoint_keys import Key, place_of
from grasp_tune.core.choice import Candidate, Certificate, Choice, certify
from grasp_tune.core.ensemble import Tally, tallied
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, decode, encode, record
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ScoreOutcome, ended_runs
from grasp_tune.engine.checkpoints import Tensors, digest, load_model
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.lane_sharing import Usage
from grasp_tune.runtime.lock import NAME as MARKER
from grasp_tune.runtime.store import SUFFIX, CheckpointStore

RESULT, MODEL = "result.json", "model"  # a file and a checkpoint in the folder of a saved result
LOST = "lost: "  # prefix of notes on lost tasks; the next one: on work that came out differently
REPEATED = "repeated: "
RESUMED = (
    "resumed: a loss came out differently when it was computed twice; the loss or the data keep a "
    "state or random numbers of their own, so that an uninterrupted sweep may give another model"
)


@record
class Run:
    """One run of the sweep with all its parts, for tables and figures."""

    arm: int
    base: str
    value: float
    power: float
    calls: int
    finite: bool
    stretches: tuple[tuple[int, int], ...]  # its parts as (start, stop) in the run's own calls
    curve: tuple[tuple[int, float, float], ...]  # (call, mean loss, mean gradient norm)
    losses: tuple[float, ...]  # mean loss at the end of each part
    parent: int = 0  # the run from whose state it continued; 0 if it started at x0

    @property
    def last_loss(self) -> float:
        """The mean loss at its end, NaN if it diverged."""
        return self.losses[-1] if self.losses and self.finite else math.nan


@record
class Look:
    """The validation loss and metric of one point of a run, for figures and loggers."""

    arm: int  # the run; 0 for x0
    call: int
    average: bool
    samples: int  # minibatches
    loss: float
    error: float  # the loss's standard error, NaN if unknown
    metric: float  # over all rows at once, NaN without a metric


@dataclass(frozen=True, eq=False, kw_only=True)
class _Saved:
    """The part of a result that is saved in `result.json`."""

    spec: dict[str, Json]  # everything that decides the sweep
    # oracle calls of each phase; `repeated`: after a fault, not part of the budget
    calls: dict[str, int]
    choice: Choice  # the chosen candidate and all scores
    plan: Plan | None  # the paper's plan, for the paper's own sweep within this one
    certificate: Certificate | None  # what theory says about the choice
    runs: tuple[Run, ...]  # all runs, with their curves
    depth: int = 0  # steps on the longest chain of steps that must follow each other
    validation: int | None = None  # validation rows that scored the candidates, 0 if unknown;
    # None if training minibatches scored them
    metric: str | None = None  # the metric that decided: scores are 1 - metric; None: losses
    looks: tuple[Look, ...] | None = None  # in the order of the sweep; None: an older version's
    measured: str | None = None  # the metric of the looks
    usage: Usage | None = None  # of several workers, since the sweep was last started
    ramps: tuple[int, ...] | None = None  # runs whose step size doubled; None: an older version's


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Result(_Saved):
    """The result of a sweep; `model` is the trained `nn.Module`, at the chosen point."""

    tensors: Tensors  # `param.*` and `buffer.*` of the chosen point
    build: Callable[[], nn.Module] | None = None  # builds the module for `model`

    @classmethod
    def of(
        cls, search: Search, tensors: Tensors, build: Callable[[], nn.Module] | None = None
    ) -> "Result":
        """Return the result of a search that has ended, or of one that was stopped early."""
        choice, outcomes, looks = search.partial(), search.outcomes, _looks(search)
        lost = {} if choice.partial else search.lost  # a partial choice is marked as such
        notes = [f"{LOST}{task}, after several attempts: {why}" for task, why in lost.items()]
        notes += filter(None, (getattr(item, "note", "") for item in outcomes.values()))
        choice = replace(choice, notes=(*choice.notes, *dict.fromkeys([*notes, *search.notes])))
        own = {name: x for name, x in tensors.items() if name.startswith(("param.", "buffer."))}
        parts = ended_runs(search.tasks.values(), outcomes)
        samples = (x for item in outcomes.values() for x in getattr(item, "samples", ()))
        # The driver knows the problem, and adds the number of rows and the metric's name.
        by_metric = not choice.partial and not all(math.isnan(sample.loss) for sample in samples)
        return cls(
            spec=search.spec.to_dict(),
            choice=choice,
            plan=search.plan,
            certificate=certify(choice, getattr(search.spec.method, "delta", 0.05)),
            calls=search.calls,
            runs=_runs(search),
            tensors={name: item.detach().cpu().clone() for name, item in own.items()},
            build=build,
            depth=search.depth,
            looks=looks,
            ramps=tuple(sorted({segment.arm.index for segment, _ in parts if segment.ramp})),
            validation=0 if looks and not choice.partial else None,
            metric="metric" if by_metric else None,
        )

    @cached_property
    def model(self) -> nn.Module:
        """The model at the chosen point, in evaluation mode; for a loaded result see `load`."""
        if self.build is None:
            words = "give Result.load the function that builds the model, or call restore(model)"
            raise InputError(f"this result comes from a folder, which holds tensors only: {words}")
        return self.restore(self.build())

    def restore(self, model: nn.Module) -> nn.Module:
        """Return the given model with the chosen weights, in evaluation mode."""
        load_model(model, self.tensors, MODEL)
        return model.eval()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All points that could have been returned, x0 first."""
        return self.choice.candidates

    @property
    def cell(self) -> Cell | None:
        """The chosen run as a cell, with the calls that it used; None if x0 was chosen."""
        chosen = self.choice.chosen
        spent = sum(run.calls for run in self.runs if run.arm == chosen.arm)
        return Cell(chosen.arm, chosen.value, spent) if chosen.arm else None

    @property
    def steady_runs(self) -> tuple[Run, ...]:
        """The runs with one step size: all but the ramps, and a ramp if it was chosen."""
        left_out = {*(self.ramps or ())} - {self.choice.chosen.arm}
        return tuple(run for run in self.runs if run.arm not in left_out)

    def remark(self, run: Run) -> str:
        """Return why a run failed, or an empty string."""
        ramp = run.arm in (self.ramps or ())
        return "" if run.finite else "its step doubled until it failed" if ramp else "diverged"

    @property
    def score(self) -> float:
        """The chosen point's score in the ensemble: a loss, or the norm of the mean gradient."""
        return self.choice.chosen.score

    @property
    def error(self) -> float:
        """The standard error of the score if it is a mean over minibatches, else NaN."""
        return error_bar(self.choice.chosen) if self.choice.by == "value" else math.nan

    @property
    def spent(self) -> int:
        """The oracle calls that were made, without those repeated after a fault."""
        return sum(self.calls.values()) - self.calls.get("repeated", 0)

    @property
    def loss(self) -> float:
        """The chosen point's loss if it is known without another oracle call, else NaN."""
        if self.choice.by == "value":
            return self.score
        ends = {run.arm: run.losses[-1] for run in self.runs if run.losses}
        return ends.get(self.choice.chosen.arm, math.nan)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader: runs that diverged, lost tasks, why x0 was chosen."""
        return self.choice.notes

    @property
    def lost(self) -> tuple[str, ...]:
        """The notes on faults; without these faults, another model may have been chosen."""
        return tuple(note for note in self.notes if note.startswith((LOST, REPEATED, RESUMED)))

    @property
    def partial(self) -> bool:
        """Whether the sweep was stopped before its end."""
        return self.choice.partial

    def table(self, limit: int | None = None) -> str:
        """Return a text table of at most `limit` runs: the chosen one, then the longest ones."""
        chosen, scores = self.choice.chosen.arm, dict[int, float]()
        for row in self.candidates:
            if math.isfinite(row.score):
                scores[row.arm] = min(row.score, scores.get(row.arm, math.inf))

        def rank(run: Run) -> tuple[bool, bool, int, float]:
            loss = run.last_loss if math.isfinite(run.last_loss) else math.inf
            return run.arm != chosen, math.isinf(loss), -run.calls, loss

        line = "{:>4} {:<10} {:>10} {:>8} {:>11} {:>11}  {}".format
        lines = [line("run", "base", "value", "calls", "last loss", "score", "").rstrip()]
        for run in sorted(self.runs, key=rank)[:limit]:
            word = "<- chosen" if run.arm == chosen else self.remark(run)
            numbers = _number(run.last_loss), _number(scores.get(run.arm, math.nan))
            cells = run.arm, run.base, f"{run.value:.3g}", run.calls, *numbers, word
            lines.append(line(*cells).rstrip())
        if limit is not None and len(self.runs) > limit:
            lines.append(f"... and {len(self.runs) - limit} more")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Json]:
        """Return everything but the model's tensors as JSON values."""
        return {
            "format": 2,
            "model": digest(self.tensors),
            "score": encode(self.score),
            "cell": encode(self.cell),
            "partial": self.partial,
            **{item.name: encode(getattr(self, item.name)) for item in fields(_Saved)},
        }

    def save(self, folder: Path | str) -> None:
        """Write `result.json` and the model's tensors to a folder.

        folder: new, empty, or with a result or sweep of grasp_tune; raises `InputError` if it has
            files with the same names that are somebody else's.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = [name for name in (RESULT, f"{MODEL}{SUFFIX}") if (folder / name).exists()]
        if names and not (folder / MARKER).exists():
            try:
                if RESULT in names:
                    read_json(folder / RESULT, STATE_LIMIT, seal=True)
                else:  # saving was interrupted after the model
                    CheckpointStore(folder).read(MODEL)
            except CheckpointError:
                words = "which may be somebody else's: save to another folder, or remove them"
                raise InputError(f"{folder} holds {' and '.join(names)}, {words}") from None
        self.write(folder)

    def write(self, folder: Path) -> None:
        """Write like `save`, to a folder that is known to be ours, even after a crash."""
        CheckpointStore(folder).write(MODEL, self.tensors, {})
        write_json_atomic(folder / RESULT, self.to_dict(), seal=True)

    @classmethod
    def load(cls, folder: Path | str, model: Callable[[], nn.Module] | None = None) -> "Result":
        """Return a saved result, after verifying its checksums.

        folder: the folder given to `save`, or to a sweep as `out`.
        model: a function that builds the module for `result.model`.
        """
        path = Path(folder) / RESULT
        data = read_json(path, STATE_LIMIT, seal=True)
        if data.get("format") != 2:
            raise InputError(f"{path}: not a result of format 2")
        found = decode(_Saved, {item.name: data.get(item.name) for item in fields(_Saved)})
        values = {**vars(found), "spec": SweepSpec.checked(found.spec)}
        store = CheckpointStore(path.parent)
        tensors = store.read(MODEL).tensors
        if data.get("model") != digest(tensors):
            file = store.path(MODEL)
            raise CheckpointError(f"{file} is not the model of {path.name}: their digests differ")
        return cls(**values, tensors=tensors, build=model)

    def __repr__(self) -> str:
        from grasp_tune.report.formatting import estimate

        cell, base = self.cell, self.choice.chosen.base
        held_out = "" if self.validation is None else "validation "
        what = "x0" if cell is None else f"run {cell.index} ({base} {cell.value:.3g})"
        kind = f"{held_out}loss" if self.choice.by == "value" else "gradient norm"
        kind = kind if self.metric is None else f"1 - {self.metric}"
        samples = self.choice.chosen.samples  # shown, because few samples give a rough estimate
        rows = f" of {self.validation} rows" if self.validation else ""
        words = f" over {samples} minibatch{'es' * (samples > 1)}{rows}" if samples else ""
        score = f"{estimate(self.score, self.error)}{words}"
        partial = ", stopped early" if self.partial else ""
        calls = f"{self.spent} of {self.spec['budget']} calls{partial}"
        return f"<Result: {what}, {kind} {score}, {calls}>"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{html.escape(repr(self))}</p>{notes}<pre>{html.escape(self.table(20))}</pre>"

    def figures(self) -> dict[str, Any]:
        """Return plotly figures: `scores`, `curves`, `calls`; needs the extra `report`."""
        from grasp_tune.report.figures import result_figures

        return result_figures(self)

    def report(self, path: Path | str) -> Path:
        """Return the path of the report, one HTML file; `path` is the file or a folder for it."""
        from grasp_tune.report.page import write_result_report

        return write_result_report(Path(path), self)


def error_bar(row: Candidate) -> float:
    """Return the standard error of a candidate's mean score, NaN with fewer than two samples."""
    spread = Tally(row.samples, row.score, row.square).variance
    return math.sqrt(spread / row.samples) if math.isfinite(spread) else math.nan


def _number(value: float) -> str:
    return f"{value:.5g}" if math.isfinite(value) else "-"


def _runs(search: Search) -> tuple[Run, ...]:
    """Return all runs, each with its parts in the order of its own calls."""
    found: dict[int, list[Any]] = {}  # by run: its parts as (segment, outcome)
    writers: dict[Key | None, int] = {}  # checkpoint -> the run that wrote it
    for segment, outcome in ended_runs(search.tasks.values(), search.outcomes):
        writers.update(dict.fromkeys(segment.writes, segment.arm.index))
        if outcome is not None:
            found.setdefault(outcome.arm, []).append((segment, outcome))

    def run_of(parts: list[Any]) -> Run:
        parts.sort(key=lambda part: part[0].start)
        first, items = parts[0][0], [item for _, item in parts]
        return Run(
            *(first.arm.index, first.arm.base, first.arm.value, first.arm.power),
            calls=sum(item.calls for item in items),
            finite=all(item.finite for item in items),
            stretches=tuple((segment.start, segment.stop) for segment, _ in parts),
            curve=tuple((p.call, p.loss, p.norm) for item in items for p in item.curve),
            losses=tuple(item.loss for item in items),
            parent=writers.get(first.origin, 0),
        )

    return tuple(run_of(parts) for _, parts in sorted(found.items()))


def _looks(search: Search) -> tuple[Look, ...]:
    """Return every point's loss and metric on validation data, over the samples of all rounds."""
    outcomes = search.outcomes
    if not any(isinstance(item, ProbeOutcome) and item.held_out for item in outcomes.values()):
        return ()
    found: dict[tuple[int, int, bool], list[Any]] = {}
    for task, item in outcomes.items():
        if isinstance(item, ScoreOutcome) and getattr(search.tasks[task], "by", "") == "value":
            for sample in item.samples:
                run, call, what = place_of(sample.key)  # a state has the same point as the iterate
                place = (run, call, what == "average")
                found.setdefault(place, []).append(replace(sample, key=""))
    looks = []
    for place, samples in found.items():
        score = tallied(samples)[""]
        total = score.count or math.nan
        loss, error = sum(item.count * item.loss for item in samples) / total, math.nan
        metric = sum(item.count * item.metric for item in samples) / total
        if math.isnan(loss):  # then the score is the loss
            loss, error = score.mean, math.sqrt(score.variance / total)
        looks.append(Look(*place, score.count, loss, error, metric))
    return tuple(looks)
