"""The same problem and the same oracle calls for this method and for others, over several seeds.

Every (method, seed) is a record of its own on the disk, so a comparison that was stopped goes on
where it was. All see the same minibatches in the same order; what they return is judged over all
rows, outside the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from grasp_tune.api import minimize
from grasp_tune.config.arguments import sweep_arguments
from grasp_tune.config.build import Built, build_parts, settled
from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.explain import hint
from grasp_tune.config.run_folder import claim, masked_config, yaml_text
from grasp_tune.config.schema import Experiment
from grasp_tune.core.errors import BudgetTooSmall, MissingExtra
from grasp_tune.core.records import decode, encode
from grasp_tune.engine.checkpoints import load_model
from grasp_tune.engine.metrics import find_metric
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.threads import task_threads
from grasp_tune.peers.registry import PEERS, find_peer, installed_peers
from grasp_tune.peers.session import Session
from grasp_tune.peers.tuned import Trial
from grasp_tune.report.evaluation import Quality, evaluate
from grasp_tune.report.figures import strip_figure
from grasp_tune.report.formatting import duration, number, percent, plural
from grasp_tune.report.rendering import plotly_library, render, write_page
from grasp_tune.runtime.files import read_json, write_json_atomic

OURS = {"grasp-promote": "GRASP, promote", "grasp-paper": "GRASP, the paper's"}
SORTS = ("train_loss", "test_loss", "metric", "seconds")
_LIMIT = 2**20  # bytes of a record
_TIMED = 10  # oracle calls for the estimate of the time


@dataclass(frozen=True, slots=True)
class Record:
    """One method with one seed."""

    method: str
    seed: int
    calls: int
    seconds: float
    diverged: bool
    note: str
    quality: Quality | None  # None where the method could not run at all


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over its seeds."""

    method: str
    title: str
    records: tuple[Record, ...]

    @property
    def median_loss(self) -> float:
        """The median training loss; infinite where no seed ended well."""
        losses = self.values(lambda quality: quality.train_loss)
        return median(losses) if losses else math.inf

    @property
    def seconds(self) -> float:
        """The mean time of a seed."""
        return mean(item.seconds for item in self.records) if self.records else 0.0

    def values(self, read: Callable[[Quality], float | None]) -> list[float]:
        """A number of the seeds that have it."""
        found = [read(item.quality) for item in self.records if item.quality is not None]
        return [value for value in found if value is not None and math.isfinite(value)]

    def mean_of(self, read: Callable[[Quality], float | None]) -> float | None:
        """The mean of a number over the seeds that have it."""
        known = self.values(read)
        return mean(known) if known else None

    @property
    def remark(self) -> str:
        """What a reader should know: failures first, else what the last seed said."""
        if failed := sum(item.diverged for item in self.records):
            return f"{failed} of {len(self.records)} diverged"
        return next((item.note for item in reversed(self.records) if item.note), "")

    def rank(self, sort: str) -> float:
        """What the methods are sorted by, the smallest first."""
        if sort == "seconds":
            return self.seconds
        if sort == "train_loss":
            return self.median_loss
        sign, read = (-1.0, test_metric) if sort == "metric" else (1.0, test_loss)
        value = self.mean_of(read)
        return math.inf if value is None else sign * value


def test_loss(quality: Quality) -> float | None:
    """The loss on the test rows."""
    return quality.test_loss


def test_metric(quality: Quality) -> float | None:
    """The metric that was asked for on the test rows, or the accuracy there."""
    return quality.test_accuracy if quality.metric is None else quality.test_metric


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods, in the order that was asked for."""

    experiment: Experiment
    folder: Path
    methods: tuple[MethodSummary, ...]
    left_out: tuple[str, ...]  # peers that are not installed
    metric: str  # the name of what `metric` sorts by

    def to_dict(self) -> dict[str, object]:
        """The comparison as JSON values."""
        return {
            "budget": self.experiment.budget,
            "left_out": list(self.left_out),
            "metric": self.metric,
            "methods": [
                {
                    "method": item.method,
                    "title": item.title,
                    "train_loss": encode(item.median_loss),
                    "test_loss": item.mean_of(test_loss),
                    "test_metric": item.mean_of(test_metric),
                    "seconds": item.seconds,
                    "records": [encode(record) for record in item.records],
                }
                for item in self.methods
            ],
        }


def chosen_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods to compare: those named, or ours and every peer that is installed."""
    if not names:
        return (*OURS, *(peer.name for peer in installed_peers()))
    known = (*OURS, *PEERS)
    for name in names:
        if name not in known:
            wanted = f"some of {', '.join(known)}{hint(name, known)}"
            raise ConfigError("--methods", "", shown(name), wanted)
        if name in PEERS and not PEERS[name].installed:
            raise MissingExtra(
                f"{PEERS[name].title} needs the package {PEERS[name].package}, which is not "
                "installed; run: pip install 'grasp_tune[bench]'"
            )
    return tuple(dict.fromkeys(names))


def compare(
    experiment: Experiment,
    out: Path | str,
    *,
    methods: Sequence[str] = (),
    seeds: int = 3,
    fresh: bool = False,
    sort: str = "train_loss",
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run what is missing of a comparison and return all of it.

    experiment: the problem, the budget of each method, and the first seed.
    out: the folder of the comparison; the same folder again goes on with it.
    methods: names as `chosen_methods` knows them; none means all that are installed.
    seeds: how often each method runs.
    fresh: remove an earlier comparison first.
    sort: what comes first: the smallest `train_loss`, `test_loss` or `seconds`, or the largest
        `metric` on the test rows.
    tell: gets a line with the time that this will take, and one for each record.
    """
    names = chosen_methods(methods)
    if sort not in SORTS:
        raise ConfigError("--sort", "", shown(sort), f"one of {', '.join(SORTS)}")
    if experiment.method.name == "deterministic":
        raise ConfigError(
            "compare", "method", "deterministic", "a method that samples, as the others do"
        )
    folder = Path(out).expanduser().absolute()
    experiment = experiment.model_copy(update={"out": str(folder)})
    built = build_parts(experiment)
    experiment = settled(experiment, built.problem)
    claim(folder, experiment, fresh=fresh)
    # Seed by seed, so that a comparison that is stopped has something to say of every method.
    pairs = [(experiment.seed + at, name) for at in range(seeds) for name in names]
    paths = {(seed, name): folder / "records" / f"{name}-{seed}.json" for seed, name in pairs}
    if left := sum(not path.exists() for path in paths.values()):
        tell(_time_words(left, experiment, built.problem))
    found: dict[str, list[Record]] = {name: [] for name in names}
    for count, ((seed, name), path) in enumerate(paths.items(), start=1):
        if path.exists():
            record = decode(Record, read_json(path, _LIMIT))
        else:
            record = _run(experiment, built, name, seed)
            path.parent.mkdir(exist_ok=True)
            write_json_atomic(path, encode(record))
            quality = record.quality
            what = record.note if quality is None else f"loss {quality.train_loss:.4g}"
            words = f"{title_of(name)}, seed {seed}: {what}, {record.seconds:.1f} s"
            tell(f"[{count}/{len(pairs)}] {words}")
        found[name].append(record)
    summaries = [MethodSummary(name, title_of(name), tuple(items)) for name, items in found.items()]
    missing = () if methods else tuple(p.title for p in PEERS.values() if not p.installed)
    metric = built.problem.metric
    comparison = Comparison(
        experiment,
        folder,
        tuple(sorted(summaries, key=lambda item: item.rank(sort))),
        missing,
        "accuracy" if metric is None else find_metric(metric)[0],
    )
    write_json_atomic(folder / "comparison.json", comparison.to_dict())
    return comparison


def _time_words(runs: int, experiment: Experiment, problem: TorchProblem) -> str:
    """How long so many runs will take, from a few timed calls."""
    trial = Trial.at(Session(problem, _TIMED + 1, experiment.seed), 0.0)
    with task_threads(trial.run.oracle.model):
        trial.advance(1)  # sets things up
        clock = time.perf_counter()
        trial.advance(_TIMED)
        each = (time.perf_counter() - clock) / _TIMED
    total = duration(runs * experiment.budget * each)
    return f"{plural(runs, 'run')} of {experiment.budget:,} calls each: about {total}"


def title_of(method: str) -> str:
    """The method's name for people."""
    return OURS.get(method) or find_peer(method).title


def _run(experiment: Experiment, built: Built, name: str, seed: int) -> Record:
    clock, problem, diverged = time.perf_counter(), built.problem, False
    try:
        if name in OURS:
            schedule = name.removeprefix("grasp-")
            arguments = {**sweep_arguments(experiment), "seed": seed}
            if schedule != experiment.schedule:
                arguments["schedule"] = schedule
            if schedule == "paper":
                arguments["challengers"] = {}
            found = minimize(problem, progress=False, **arguments)
            chosen, model = found.choice.chosen, found.model
            note = f"{chosen.base} {chosen.value:.3g}" if chosen.arm else "the start point"
            calls = sum(found.calls.values()) - found.calls.get("repeated", 0)
        else:
            result = find_peer(name).run(problem, experiment.budget, seed)
            calls, note, diverged = result.calls, result.note, result.diverged
            model = problem.build(seed)
            load_model(model, result.tensors, name)
    except BudgetTooSmall as error:
        note = f"needs a budget of {error.smallest:,}"
        return Record(name, seed, 0, time.perf_counter() - clock, False, note, None)
    seconds = time.perf_counter() - clock
    return Record(name, seed, calls, seconds, diverged, note, evaluate(model, built))


def write_comparison(comparison: Comparison) -> Path:
    """Write the page into the comparison's folder; return its path."""
    return write_page(comparison.folder / "comparison.html", comparison_text(comparison))


def comparison_text(comparison: Comparison) -> str:
    """The comparison as HTML."""
    figures = {} if plotly_library() is None else {"losses": loss_figure(comparison)}
    return render(
        "comparison.html",
        comparison.experiment.title or "A comparison",
        figures,
        comparison=comparison,
        seeds=max((len(item.records) for item in comparison.methods), default=0),
        head=head(comparison),
        rows=[row(item, comparison.metric) for item in comparison.methods],
        marks=[item.method in OURS for item in comparison.methods],
        config=yaml_text(masked_config(comparison.experiment)),
    )


def head(comparison: Comparison) -> tuple[str, ...]:
    """The columns of the table; a space at the end marks words, which are set to the left."""
    metric = f"test {comparison.metric}"
    numbers = ("training loss", "from ... to", "test loss", metric, "calls", "time")
    return ("method ", *numbers, "remark ")


def row(item: MethodSummary, metric: str) -> tuple[str, ...]:
    """One line of the table."""
    losses, mean = item.values(lambda quality: quality.train_loss), item.mean_of(test_metric)
    return (
        item.title,
        number(item.median_loss),
        f"{number(min(losses))} to {number(max(losses))}" if losses else "–",
        number(item.mean_of(test_loss)),
        percent(mean) if metric == "accuracy" else number(mean),
        f"{max((record.calls for record in item.records), default=0):,}",
        duration(item.seconds),
        item.remark,
    )


def loss_figure(comparison: Comparison) -> Any:
    """A dot per method and seed at its training loss."""
    return strip_figure(
        [
            (
                item.title,
                item.method in OURS,
                [
                    (f"{item.title}, seed {record.seed}", record.quality.train_loss)
                    for record in item.records
                    if record.quality is not None and math.isfinite(record.quality.train_loss)
                ],
            )
            for item in comparison.methods
        ],
        "loss over all training rows",
    )
