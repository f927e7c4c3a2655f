"""The same problem and the same oracle calls for this method and for others, over several seeds.

Every (method, seed) is a file of its own, so a comparison that was stopped goes on where it was.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import mean, median
from typing import Any

from grasp_tune.api import minimize
from grasp_tune.config.build import Built, build_parts, settled
from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.loader import hint
from grasp_tune.config.run_folder import claim
from grasp_tune.config.schema import Experiment
from grasp_tune.config.yaml_text import yaml_text
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.records import decode, encode
from grasp_tune.engine.checkpoints import load_model
from grasp_tune.extras import missing_extra
from grasp_tune.limits import call_times
from grasp_tune.peers.registry import PEERS, installed_peers
from grasp_tune.report.evaluation import FILE, Quality, evaluate, read_metadata, write_metadata
from grasp_tune.report.figures import CHOSEN, CROSS, OTHER, add_trace, axis, new_figure
from grasp_tune.report.formatting import duration, number, percent, plural
from grasp_tune.report.page import render, write_page
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.result import Result

OURS = {"grasp-promote": "GRASP, promote", "grasp-paper": "GRASP, the paper's"}
TITLES = {**OURS, **{name: peer.title for name, peer in PEERS.items()}}  # of all methods
SORTS = ("train_loss", "test_loss", "metric", "seconds")
FAILED = "failed: "  # how the note on a peer begins that raised an error
_FAR = 100.0  # a number so many times the median is drawn at the edge


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

    def value(self, key: str) -> float:
        """A number that methods are sorted by, one of `SORTS`; NaN where there is none."""
        numbers: dict[str, float | None] = {"seconds": self.seconds}
        if found := self.quality:
            numbers["train_loss"] = found.train.loss
            if held_out := found.test or found.validation:
                numbers["test_loss"] = held_out.loss
                numbers["metric"] = held_out.metric if found.metric else held_out.accuracy
        value = numbers.get(key)
        return math.nan if value is None else value


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over its seeds."""

    method: str
    title: str
    records: tuple[Record, ...]

    def values(self, key: str) -> list[float]:
        return [x for item in self.records if math.isfinite(x := item.value(key))]

    def typical(self, key: str) -> float | None:
        """The median of the training losses, the mean of anything else."""
        average = median if key == "train_loss" else mean
        return average(known) if (known := self.values(key)) else None

    def rank(self, key: str) -> float:
        value = self.typical(key)
        return math.inf if value is None else -value if key == "metric" else value

    @property
    def remark(self) -> str:
        """What a reader should know: failures first, else what the last seed said."""
        if failed := sum(item.diverged for item in self.records):
            return f"{failed} of {len(self.records)} diverged"
        return next((item.note for item in reversed(self.records) if item.note), "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods, in the order that was asked for."""

    experiment: Experiment
    folder: Path
    methods: tuple[MethodSummary, ...]
    left_out: tuple[str, ...]  # peers that are not installed
    metric: str  # the name of what `metric` sorts by
    sort: str  # one of `SORTS`
    held_out: str = "test"  # or `validation`, where there are no test rows

    @property
    def labels(self) -> dict[str, str]:
        test, metric = f"{self.held_out} loss", f"{self.held_out} {self.metric}"
        return dict(zip(SORTS, ("training loss", test, metric, "time"), strict=True))

    def show(self, key: str, item: MethodSummary) -> str:
        value = item.typical(key)
        if key == "seconds" and value is not None:
            return f"{value:.1f} s" if value < 10 else duration(value)
        shares = key == "metric" and self.metric == "accuracy"
        return percent(value) if shares else number(value, 3)

    def to_dict(self) -> dict[str, object]:
        return {
            "budget": self.experiment.budget,
            "left_out": list(self.left_out),
            "metric": self.metric,
            "methods": [encode(x) | {key: x.typical(key) for key in SORTS} for x in self.methods],
        }


def chosen_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods to compare: those named, or ours and every peer that is installed."""
    if not names:
        return (*OURS, *(peer.name for peer in installed_peers()))
    for name in names:
        if name not in TITLES:
            wanted = f"some of {', '.join(TITLES)}{hint(name, TITLES)}"
            raise ConfigError("--methods", "", shown(name), wanted)
        if name in PEERS and not (peer := PEERS[name]).installed:
            raise missing_extra(str(peer.needs).partition(".")[0], peer.extra, peer.title)
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

    experiment: the problem, the budget of each method, and the first of the `seeds`.
    out: the folder of the comparison; the same folder again goes on with it, unless `fresh`.
    methods: names as `chosen_methods` knows them; none means all that are installed.
    sort: what comes first: the smallest `train_loss`, `test_loss` or `seconds`, or the largest
        `metric`, on the test rows, or on the validation rows where there are none.
    tell: gets a line with the time that this will take, and one for each record.
    """
    names = chosen_methods(methods)
    if sort not in SORTS:
        raise ConfigError("--sort", "", shown(sort), f"one of {', '.join(SORTS)}")
    if experiment.method.name == "deterministic":
        wanted = "a method that samples, as the others do"
        raise ConfigError("compare", "method", "deterministic", wanted)
    folder = Path(out).expanduser().absolute()
    built = build_parts(experiment)
    held_out = "test" if built.data.x_test is not None else "validation"
    lacking = held_out == "validation" and not built.problem.validation_rows
    if lacking and sort in ("test_loss", "metric"):
        wanted = "train_loss or seconds; or test rows, such as problem.dataset.test_share: 0.2"
        raise ConfigError("--sort", "", f"{sort} without test or validation rows", wanted)
    experiment = settled(experiment.model_copy(update={"out": str(folder)}), built.problem)
    claim(folder, experiment, fresh=fresh)
    # Seed by seed, so that a comparison that is stopped has something to say of every method.
    pairs = [(name, experiment.seed + at) for at in range(seeds) for name in names]
    paths = {(name, seed): folder / "records" / f"{name}-{seed}.json" for name, seed in pairs}
    if left := sum(not path.exists() for path in paths.values()):
        each = sum(call_times(built.problem, experiment.seed, enough=0.5))
        total = duration(left * experiment.budget * each)
        tell(f"{plural(left, 'run')} of {experiment.budget:,} calls each: about {total}")
    found: dict[str, list[Record]] = {name: [] for name in names}
    for count, ((name, seed), path) in enumerate(paths.items(), start=1):
        if path.exists():
            record = decode(Record, read_json(path, STATE_LIMIT))
        else:
            record = run_method(experiment, built, name, seed)
            if not record.note.startswith(FAILED):  # else it is tried again
                path.parent.mkdir(exist_ok=True)
                write_json_atomic(path, encode(record))
            what = f"loss {x.train.loss:.4g}" if (x := record.quality) else record.note
            words = f"{TITLES[name]}, seed {seed}: {what}, {record.seconds:.1f} s"
            tell(f"[{count}/{len(pairs)}] {words}")
        found[name].append(record)
    summaries = [MethodSummary(name, TITLES[name], tuple(items)) for name, items in found.items()]
    ordered = tuple(sorted(summaries, key=lambda item: item.rank(sort)))
    absent = tuple(peer.title for peer in PEERS.values() if not methods and not peer.installed)
    metric = built.problem.metric_name or "accuracy"
    comparison = Comparison(experiment, folder, ordered, absent, metric, sort, held_out)
    write_json_atomic(folder / "comparison.json", comparison.to_dict())
    return comparison


def run_method(experiment: Experiment, built: Built, name: str, seed: int) -> Record:
    """Train with one method and one seed, and judge what it returns.

    A peer that cannot do it, be it for the model or for the versions of packages, is a record that
    says why; what stops ours stops the comparison.
    """
    begun, problem = time.perf_counter(), built.problem
    try:
        if name in OURS:
            schedule = name.removeprefix("grasp-")
            arguments = {**experiment.sweep_arguments(), "seed": seed}
            if schedule != experiment.schedule:
                arguments["schedule"] = schedule
            if schedule == "paper":
                arguments["challengers"] = {}
            found = minimize(problem, progress=False, **arguments)
            model, note = found.model, "" if found.choice.chosen.arm else "the start point"
            how = found.spent, time.perf_counter() - begun, False, note
        else:
            result, model = PEERS[name].run(problem, experiment.budget, seed), problem.build(seed)
            load_model(model, result.tensors, name)
            how = result.calls, result.seconds, result.diverged, result.note
    except BudgetTooSmall as error:
        note = f"needs a budget of {error.smallest:,}"
    except Exception as error:
        if name in OURS:
            raise
        note = f"{FAILED}{' '.join(str(error).split())[:200] or type(error).__name__}"
    else:
        return Record(name, seed, *how, evaluate(model, built))
    return Record(name, seed, 0, time.perf_counter() - begun, False, note, None)


def train_adamw(folder: Path, experiment: Experiment) -> None:
    """Train AdamW at its defaults with the calls of a run, and note in its folder how it did."""
    metadata = read_metadata(folder)
    if metadata is None or metadata.quality is None:
        raise ConfigError(str(folder), "", f"no {FILE}", "the folder of a finished run")
    budget = int(Result.load(folder).spec["budget"])
    experiment = experiment.model_copy(update={"budget": budget})
    record = run_method(experiment, build_parts(experiment), "adamw", experiment.seed)
    assert record.quality is not None
    quality = replace(metadata.quality, adamw=record.quality.held_out[1])
    write_metadata(folder, replace(metadata, quality=quality))


def write_comparison(comparison: Comparison) -> Path:
    """Write the page into the comparison's folder; return its path."""
    text = render(
        "comparison.html",
        {"methods": lambda: method_figure(comparison)},
        title=comparison.experiment.title or "A comparison",
        comparison=comparison,
        headline=headline(comparison),
        rows=table_rows(comparison),
        marks=[item.method in OURS for item in comparison.methods],
        config=yaml_text(comparison.experiment.to_dict()),
    )
    return write_page(comparison.folder / "comparison.html", text)


def headline(comparison: Comparison) -> str:
    """One sentence: where the best of ours stands, and beside whom."""
    sort, methods = comparison.sort, comparison.methods
    words = [f"{item.title}: {comparison.show(sort, item)}." for item in methods]
    best = f"Best {comparison.labels[sort]} of {plural(len(words), 'method')}: {words[0]}"
    if at := next((at for at, item in enumerate(methods) if item.method in OURS), 0):
        return f"{best} The best of ours is number {at + 1}, {words[at]}"
    return " Next is ".join([best, *words[1:2]])


def table_rows(comparison: Comparison) -> Sequence[tuple[str, ...]]:
    """The table, its head first: a space at the end marks words, which are set to the left."""
    train, test, metric, time = comparison.labels.values()
    rows = [("method ", train, "range", test, metric, "calls", time, "remark ")]
    for item in comparison.methods:
        losses = item.values("train_loss")
        ends = f"{number(min(losses), 3)}–{number(max(losses), 3)}" if losses else "–"
        calls = f"{max((record.calls for record in item.records), default=0):,}"
        train, test, metric, time = (comparison.show(key, item) for key in SORTS)
        rows.append((item.title, train, ends, test, metric, calls, time, item.remark))
    return rows


def method_figure(comparison: Comparison) -> Any:
    """A dot per method and seed at what the methods are sorted by; a cross for one far above."""
    names, sort = [escape(item.title) for item in comparison.methods], comparison.sort
    values = [value for item in comparison.methods for value in item.values(sort)]
    edge = _FAR * median(values) if values and min(values) > 0 else math.inf
    far = 1.5 * max((value for value in values if value <= edge), default=0.0)
    figure, dot = new_figure(comparison.labels[sort], ""), {"size": 10, "opacity": 0.8}
    looks = {"ours": {**dot, "color": CHOSEN}, "others": {**dot, "color": OTHER}}
    places: dict[str, list[tuple[float, str]]] = {kind: [] for kind in (*looks, "off the scale")}
    told: dict[str, list[str]] = {kind: [] for kind in places}
    for item, name in zip(comparison.methods, names, strict=True):
        for record in item.records:
            if math.isfinite(value := record.value(sort)):
                kind = "ours" if item.method in OURS else "others"
                kind = "off the scale" if value > edge else kind
                places[kind].append((far if value > edge else value, name))
                told[kind].append(f"{item.title}, seed {record.seed}: {number(value)}")
    for kind, points in places.items():
        add_trace(figure, kind, points, told[kind], marker=looks.get(kind, CROSS))
    figure.update_xaxes(**axis([x for trace in figure.data for x in trace.x]))
    # Every method has its name beside its line, also one without a dot.
    order = {"categoryorder": "array", "categoryarray": names, "tickvals": names}
    figure.update_yaxes(range=[len(names) - 0.5, -0.5], **order)
    return figure.update_layout(height=110 + 22 * len(names))
