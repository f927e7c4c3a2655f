"""The report of a run: what it did, whether it is good, whether to trust it, what to do next."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.loader import CONFIG
from grasp_tune.config.run_folder import REPORT, saved_config, yaml_text
from grasp_tune.core.choice import Candidate
from grasp_tune.report.advice import (
    certificate_words,
    effort,
    error_bar,
    headline,
    next_steps,
    score_label,
    score_words,
    spent_calls,
    worker_times,
)
from grasp_tune.report.figures import (
    call_parts,
    curve_figure,
    curve_lines,
    score_figure,
    validation_figure,
)
from grasp_tune.report.formatting import number, percent, plural, quantities
from grasp_tune.report.rendering import plotly_library, render, write_page
from grasp_tune.report.run_metadata import RunMetadata, read_metadata
from grasp_tune.runtime.callbacks import Callback
from grasp_tune.runtime.lock import is_held
from grasp_tune.runtime.result import Result, Run
from grasp_tune.runtime.sweep_folder import load_search

REFRESH = 10  # seconds after which the page of a run under way loads itself again
_SHOWN = 12  # rows of a table before the rest is folded away
_CURVES = 40  # curves in the figure, the best ones


def write_report(
    folder: Path, result: Result, metadata: RunMetadata | None, config: Mapping[str, Any]
) -> Path:
    """Write `report.html` into the folder; return its path. `config` is shown as it is given."""
    return write_page(folder / REPORT, report_text(folder, result, metadata, config))


def write_result_report(path: Path, result: Result) -> Path:
    """Write the report of a result that has no folder; a folder as `path` gets `report.html`."""
    path = path / REPORT if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_page(path, report_text(None, result, None, {}))


def write_folder_report(folder: Path) -> Path:
    """Write the report of a run's folder as it stands: ended, stopped, or under way."""
    if not (folder / CONFIG).exists():
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        raise ConfigError(str(folder), "", got, "the folder of a run, as given to --out")
    config = saved_config(folder)
    if (folder / "result.json").exists():
        return write_report(folder, Result.load(folder), read_metadata(folder), config)
    if not (folder / "state.json").exists():
        raise ConfigError(
            str(folder), "", "a run without any outcome yet", "one that has done its first task"
        )
    unfinished = Result.of(load_search(folder / "state.json"), {})
    refresh = REFRESH if is_held(folder) else None
    return write_page(folder / REPORT, report_text(folder, unfinished, None, config, refresh))


class LiveReport(Callback):
    """Writes the report of a run's folder again and again while it goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = time.monotonic() + REFRESH

    def on_progress(self, calls: int, best: float) -> None:
        """Write it, if it is time; it may cost a hundredth of the run."""
        begun = time.monotonic()
        if begun > self._next and (self._folder / "state.json").exists():
            write_folder_report(self._folder)
            self._next = time.monotonic() + max(REFRESH, 100 * (time.monotonic() - begun))


def report_text(
    folder: Path | None,
    result: Result,
    metadata: RunMetadata | None,
    config: Mapping[str, Any],
    refresh: int | None = None,
) -> str:
    """The report as HTML.

    folder: of the run, for the lines that load its model; None where there is none.
    config: as it is shown, secrets masked; `title` is the page's title.
    refresh: seconds after which the page loads itself again, for a run that is under way.
    """
    figures: dict[str, Any] = {}
    if plotly_library() is not None and result.runs:
        figures = {"scores": score_figure(result), "curves": curve_figure(result, _CURVES)}
        if (held_out := validation_figure(result)) is not None:
            figures["validation"] = held_out
    rows = sorted(result.candidates, key=lambda row: (not math.isfinite(row.score), row.score))
    runs = sorted(result.runs, key=lambda run: (-run.calls, run.value))
    budget = int(result.spec["budget"])
    backend = config.get("backend")
    workers = backend.get("workers") if isinstance(backend, Mapping) else None
    name = "" if folder is None else folder.name
    return render(
        "report.html",
        str(config.get("title") or name or "A run of grasp_tune"),
        figures,
        refresh=refresh,
        result=result,
        metadata=metadata,
        quality=None if metadata is None else metadata.quality,
        headline=headline(result, metadata),
        effort=effort(result, metadata),
        steps=next_steps(result, metadata),
        spent=spent_calls(result),
        score=(score_label(result), score_words(result.choice.chosen)),
        certificate=certificate_words(result),
        scored=plural(sum(math.isfinite(row.score) for row in result.candidates), "candidate"),
        quantity=quantities(run.base for run in result.runs),
        curves=curve_lines(result),
        parts=[
            (f"{words}: {calls:,} ({percent(calls / budget)})", calls, look)
            for _, words, calls, look in call_parts(result)
        ],
        times=worker_times(
            result, None if metadata is None else metadata.seconds, int(workers or 1)
        ),
        candidates=[_candidate_row(row) for row in rows],
        candidate_marks=[row.key == result.choice.key for row in rows],
        shown=_SHOWN,
        runs=[_run_row(run) for run in runs],
        run_marks=[run.arm == result.choice.chosen.arm for run in runs],
        folder=None if folder is None else str(folder),
        config=yaml_text(dict(config)) if config else "",
    )


def _candidate_row(row: Candidate) -> tuple[str, ...]:
    what = "start point" if not row.arm else f"run {row.arm}{', average' if row.average else ''}"
    return (
        what,
        row.base or "–",
        number(row.value),
        f"{row.call:,}",
        number(row.score),
        number(error_bar(row), 2) if row.samples else "–",
        f"{row.samples:,}",
        row.note,
    )


def _run_row(run: Run) -> tuple[str, ...]:
    return (
        str(run.arm),
        run.base + (f", scaled^{run.power:g}" if run.power else ""),
        number(run.value),
        f"{run.calls:,}",
        str(len(run.stretches)),
        number(run.losses[-1] if run.losses else None),
        "" if run.finite else "diverged",
    )
