"""Progress in oracle calls: what a bar and a log show."""

import io
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import grasp_tune as gt
from grasp_tune.core.search import Progress
from grasp_tune.core.spec import SweepSpec
from grasp_tune.executors.local import InProcess
from grasp_tune.runtime.callbacks import LINE_EVERY, ProgressReporter, Reporter, reporter_for
from grasp_tune.runtime.driver import run_sweep
from tests.engine import workbench
from tests.executors.sweeps import killed_at, problem

TRAIN = Progress("train", calls=40, budget=200, best=1.23456)


def test_a_bar_shows_phase_calls_best_and_time_left() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    bar = ProgressReporter((), console)
    bar.update(TRAIN, 60)
    bar.update(replace(TRAIN, phase="score"), 120)
    bar.close()
    shown = text.getvalue()
    assert "train" in shown
    assert "choose" in shown
    assert "60 of 200 calls" in shown
    assert "best loss 1.235" in shown
    assert ":" in shown  # the time left


def test_a_bar_that_never_got_an_update_shows_nothing() -> None:
    text = io.StringIO()
    bar = ProgressReporter((), Console(file=text, force_terminal=True))
    bar.close()
    assert text.getvalue().strip() == ""


def test_log_lines_come_at_changes_and_each_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    lines = ProgressReporter(clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="grasp_tune.runtime.callbacks"):
        lines.update(TRAIN, 50)
        now = 110.0
        lines.update(TRAIN, 70)  # too soon; from here on it goes by the clock
        now = 101.0 + LINE_EVERY
        lines.update(TRAIN, 112)  # 42 calls in 21 s: 88 more take 44 s
        lines.update(replace(TRAIN, phase="done", calls=199), 190)  # as many as the result has
    assert [record.getMessage() for record in caplog.records] == [
        "train: 50 of 200 calls, best loss 1.235",
        "train: 112 of 200 calls, best loss 1.235, about 44 s left",
        "done: 199 of 200 calls, best loss 1.235, 31 s",
    ]


def test_the_start_of_the_workers_does_not_count_as_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    lines = ProgressReporter(clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="grasp_tune.runtime.callbacks"):
        lines.update(replace(TRAIN, phase="probe"), 0)
        now = 7.0
        lines.update(TRAIN, 10)
        now = 8.0
        lines.update(replace(TRAIN, phase="score"), 160)  # 150 calls in 1 s: 40 more take less
    probe, train, score = [record.getMessage() for record in caplog.records]
    assert "left" not in probe + train and score.endswith("about 1 s left")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_kind_of_progress_follows_the_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert type(reporter_for(False)) is Reporter
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: terminal, raising=False)
    with caplog.at_level(logging.INFO, logger="grasp_tune.runtime.callbacks"):
        reporter = reporter_for(True)
        reporter.update(TRAIN, 60)
        reporter.close()
    bar = "━" in shown.getvalue()  # a library's own handler may write the log there, too
    assert (bool(caplog.records), bar) == (not terminal, terminal)


class Seen(Reporter):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.phases: list[str] = []
        self.closed = False

    def update(self, progress: Progress, calls: int) -> None:
        self.calls.append(calls)
        self.phases.append(progress.phase)

    def close(self) -> None:
        self.closed = True


def test_calls_under_way_count_and_those_that_a_crash_undid_do_not(tmp_path: Path) -> None:
    assert killed_at(150, tmp_path) < 0
    seen = Seen()
    spec = SweepSpec(
        method=gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam"),
        budget=500,
        seed=3,
        width=0,
    )
    result = run_sweep(problem(), spec, InProcess, out=tmp_path, progress=seen)
    assert seen.closed
    assert seen.calls == sorted(seen.calls)
    spent = sum(result.calls.values()) - result.calls["repeated"]
    assert result.calls["repeated"] > 0
    assert seen.calls[-1] == spent <= 500
    assert seen.phases[-1] == "done"


def test_a_reporter_is_closed_where_the_run_fails() -> None:
    seen = Seen()
    spec = SweepSpec(method=gt.NonConvex(), budget=500)
    bad = workbench.problem(loss=lambda *_: 1.0)  # type: ignore[arg-type]
    with pytest.raises(gt.ProblemError):
        run_sweep(bad, spec, InProcess, progress=seen)
    assert seen.closed
