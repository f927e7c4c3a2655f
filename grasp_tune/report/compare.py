"""The same problem and the same oracle calls for this method and for others, over several seeds.

Every (method, seed) is a record of its own on the disk, so a comparison that was stopped goes on
where it was. All see the same minibatches in the same order; what they return is judged over all
rows, outside the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from torch import nn

from grasp_tune.api import minimize
from grasp_tune.config.backends import sweep_arguments
from grasp_tune.config.build import Built, build_parts
from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.explain import nearest
from grasp_tune.config.paths import with_absolute_paths
from grasp_tune.config.run_folder import claim
from grasp_tune.config.schema import Experiment
from grasp_tune.core.errors import BudgetTooSmall, MissingExtra
from grasp_tune.core.records import decode, encode
from grasp_tune.engine.checkpoints import load_model
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.peers.registry import PEERS, Peer, find_peer, installed_peers
from grasp_tune.report.evaluation import Quality, judge
from grasp_tune.runtime.files import read_json, write_json_atomic

OURS = {"grasp-promote": "GRASP, promote", "grasp-paper": "GRASP, the paper's"}
_LIMIT = 2**20  # bytes of a record


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
class Standing:
    """One method over its seeds."""

    method: str
    title: str
    records: tuple[Record, ...]

    @property
    def losses(self) -> list[float]:
        """Training losses of the seeds that ended well."""
        return [
            item.quality.train_loss
            for item in self.records
            if item.quality is not None and math.isfinite(item.quality.train_loss)
        ]

    @property
    def middle(self) -> float:
        """The median training loss; infinite where no seed ended well."""
        return median(self.losses) if self.losses else math.inf

    def mean_of(self, read: Callable[[Quality], float | None]) -> float | None:
        """The mean of a number over the seeds that have it."""
        found = [read(item.quality) for item in self.records if item.quality is not None]
        known = [value for value in found if value is not None and math.isfinite(value)]
        return mean(known) if known else None

    @property
    def remark(self) -> str:
        """What a reader should know: failures first, else what the last seed said."""
        if failed := sum(item.diverged for item in self.records):
            return f"{failed} of {len(self.records)} diverged"
        return next((item.note for item in reversed(self.records) if item.note), "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods, the best median training loss first."""

    experiment: Experiment
    folder: Path
    standings: tuple[Standing, ...]
    left_out: tuple[str, ...]  # peers that are not installed

    def to_dict(self) -> dict[str, object]:
        """The comparison as JSON values."""
        return {
            "budget": self.experiment.budget,
            "left_out": list(self.left_out),
            "methods": [
                {
                    "method": item.method,
                    "title": item.title,
                    "train_loss": encode(item.middle),
                    "records": [encode(record) for record in item.records],
                }
                for item in self.standings
            ],
        }


def chosen_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods to compare: those named, or ours and every peer that is installed."""
    if not names:
        return (*OURS, *(peer.name for peer in installed_peers()))
    known = (*OURS, *PEERS)
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            more = f" (did you mean {hint}?)" if hint else ""
            raise ConfigError("--methods", "", shown(name), f"some of {', '.join(known)}{more}")
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
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run what is missing of a comparison and return all of it; `tell` gets a line per record."""
    names = chosen_methods(methods)
    if experiment.method.name == "deterministic":
        raise ConfigError(
            "compare", "method", "deterministic", "a method that samples, as the others do"
        )
    folder = Path(out).expanduser().absolute()
    experiment = with_absolute_paths(experiment.model_copy(update={"out": str(folder)}))
    built = build_parts(experiment)
    claim(folder, experiment, fresh=fresh)
    found: dict[str, list[Record]] = {name: [] for name in names}
    # Seed by seed, so that a comparison that is stopped has something to say of every method.
    pairs = [(experiment.seed + at, name) for at in range(seeds) for name in names]
    for count, (seed, name) in enumerate(pairs, start=1):
        path = folder / "records" / f"{name}-{seed}.json"
        record = _read(path)
        if record is None:
            record = _run(experiment, built, name, seed)
            path.parent.mkdir(exist_ok=True)
            write_json_atomic(path, encode(record))
            tell(f"[{count}/{len(pairs)}] {_words(record)}")
        found[name].append(record)
    standings = [Standing(name, title_of(name), tuple(items)) for name, items in found.items()]
    standings.sort(key=lambda item: item.middle)
    missing = () if methods else tuple(p.title for p in PEERS.values() if not p.installed)
    comparison = Comparison(experiment, folder, tuple(standings), missing)
    write_json_atomic(folder / "comparison.json", comparison.to_dict())
    return comparison


def title_of(method: str) -> str:
    """The method's name for people."""
    return OURS.get(method) or find_peer(method).title


def _run(experiment: Experiment, built: Built, name: str, seed: int) -> Record:
    clock = time.perf_counter()
    try:
        if name in OURS:
            model, calls, note = _run_ours(experiment, built.problem, name, seed)
            diverged = False
        else:
            model, calls, note, diverged = _run_peer(
                find_peer(name), built.problem, experiment.budget, seed
            )
    except BudgetTooSmall as error:
        note = f"needs a budget of {error.smallest:,}"
        return Record(name, seed, 0, time.perf_counter() - clock, False, note, None)
    seconds = time.perf_counter() - clock
    return Record(name, seed, calls, seconds, diverged, note, judge(model, built))


def _run_ours(
    experiment: Experiment, problem: TorchProblem, name: str, seed: int
) -> tuple[nn.Module, int, str]:
    schedule = name.removeprefix("grasp-")
    arguments = {**sweep_arguments(experiment), "schedule": schedule, "seed": seed}
    if schedule == "paper":
        arguments["challengers"] = {}
    result = minimize(problem, progress=False, **arguments)
    calls = sum(amount for key, amount in result.calls.items() if key != "repeated")
    chosen = result.choice.chosen
    note = f"{chosen.base} {chosen.value:.3g}" if chosen.arm else "the start point"
    return result.model, calls, note


def _run_peer(
    peer: Peer, problem: TorchProblem, budget: int, seed: int
) -> tuple[nn.Module, int, str, bool]:
    result = peer.run(problem, budget, seed)
    model = problem.build(seed)
    load_model(model, result.tensors, peer.name)
    return model, result.calls, result.note, result.diverged


def _read(path: Path) -> Record | None:
    return decode(Record, read_json(path, _LIMIT)) if path.exists() else None


def _words(record: Record) -> str:
    quality = record.quality
    what = record.note if quality is None else f"loss {quality.train_loss:.4g}"
    return f"{title_of(record.method)}, seed {record.seed}: {what}, {record.seconds:.1f} s"


def spread(standing: Standing) -> Iterator[float]:
    """The smallest and the largest training loss of a method's seeds."""
    if losses := standing.losses:
        yield min(losses)
        yield max(losses)
