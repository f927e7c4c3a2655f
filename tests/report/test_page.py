"""The report: self-contained, escaped, readable with and without plotly, and true."""

import math
import re
import shutil
from dataclasses import replace
from html import unescape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import Markup
from torch import nn

import grasp_tune as gt
from grasp_tune.cli import app
from grasp_tune.config import experiment_from, run_experiment
from grasp_tune.config.build import build_parts
from grasp_tune.config.run import Finished
from grasp_tune.config.run_folder import saved_experiment
from grasp_tune.engine.checkpoints import load_model
from grasp_tune.peers import find_peer
from grasp_tune.report import page
from grasp_tune.report.evaluation import evaluate
from grasp_tune.report.formatting import number
from grasp_tune.report.page import (
    LiveReport,
    render,
    report_text,
    write_folder_report,
    write_page,
)
from grasp_tune.report.summary import headline, score_words
from grasp_tune.runtime.driver import Driver, TimeUp
from grasp_tune.runtime.lane_sharing import Usage
from grasp_tune.runtime.lock import folder_lock
from grasp_tune.runtime.result import Result
from tests.engine import workbench
from tests.report.browser import look

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A real run, small, whose widest step sizes diverge."""
    experiment = experiment_from(
        {
            "title": "Digits & more",
            "problem": {"dataset": "digits", "model": "softmax", "batch_size": 16},
            "budget": 700,
        }
    )
    return run_experiment(experiment, tmp_path_factory.mktemp("run") / "o", progress=False)


def config(finished: Finished, **keys: Any) -> dict[str, Any]:
    return {"title": "Digits & more", "seed": 0, "folder": str(finished.folder), **keys}


def text_of(html: str) -> str:
    """What a reader sees: scripts and styles out, tags out, entities back."""
    shown = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", html)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_the_report_tells_the_story(finished: Finished) -> None:
    text = text_of(finished.report.read_text("utf-8"))
    result, metadata = finished.result, finished.metadata
    assert "Digits & more" in text
    assert text.index(headline(result, metadata)) < text.index("oracle calls were spent")
    assert "Is it good?" in text and "Can I trust it?" in text and "What next?" in text
    assert "a constant prediction" in text
    assert score_words(result) in text
    # A bound far above the loss that it bounds says nothing.
    assert result.certificate is not None and result.certificate.text not in text
    assert metadata.quality is not None and metadata.quality.test is not None
    assert f"{100 * (metadata.quality.test.accuracy or 0):.1f} % of 359 test rows right" in text
    won, lost = (
        int(re.findall(rf"training the {who}: ([\d,]+)", text)[0].replace(",", ""))
        for who in ("run that won", "runs that lost")
    )
    assert won + lost == sum(run.calls for run in result.runs)
    assert won >= sum(run.calls for run in result.runs if run.arm == result.choice.chosen.arm)
    for row in result.candidates[:3]:
        assert (f"run {row.arm}" if row.arm else "start point") in text
    assert "seed 0" in text and f"torch {version('torch')}" in text
    assert "budget: 700" in text  # the config, every key


def test_a_loss_of_ones_own_has_the_most_common_class_beside_it() -> None:
    problem = {"dataset": "digits", "model": "softmax", "loss": "tests.report.test_page:own_loss"}
    built = build_parts(experiment_from({"problem": problem, "budget": 100}))
    quality = evaluate(built.problem.build(0), built)
    assert quality.baseline is not None and quality.baseline.accuracy == pytest.approx(28 / 359)
    assert math.isnan(quality.baseline.loss)


def own_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return -model(batch[0]).gather(1, batch[1].unsqueeze(1)).mean()


def test_the_page_needs_nothing_from_outside(finished: Finished) -> None:
    html = finished.report.read_text("utf-8")
    outside = re.sub(r"(?s)<script>.*?</script>", "", html)  # plotly.js mentions addresses
    assert not re.search(r"(src|href)\s*=", outside)
    assert "http://" not in outside and "https://" not in outside
    assert html.count("<script>") == 2  # plotly.js once, and ours
    assert "default-src 'none'" in html


@pytest.mark.parametrize(
    "flags",
    [(), ("--blink-settings=preferredColorScheme=0", "--window-size=390,844")],
    ids=["light", "dark on a phone"],
)
def test_a_browser_draws_it_without_a_complaint(finished: Finished, flags: tuple[str, ...]) -> None:
    seen = look(finished.report, *flags)
    assert seen.console == ()
    assert seen.elements.count('class="plot js-plotly-plot"') == 2
    assert seen.elements.count("main-svg") >= 2
    assert "scatterlayer" in seen.elements
    assert '<div class="bar">' in seen.elements


def test_hostile_names_stay_text(finished: Finished, tmp_path: Path) -> None:
    runs = tuple(replace(run, base=HOSTILE) for run in finished.result.runs)
    chosen = finished.result.choice
    rows = tuple(replace(row, base=HOSTILE, note=HOSTILE) for row in chosen.candidates)
    choice = replace(chosen, candidates=rows, notes=(HOSTILE,))
    result = replace(finished.result, runs=runs, choice=choice)
    spec = replace(finished.metadata.spec, name=HOSTILE)
    metadata = replace(finished.metadata, spec=spec, versions=((HOSTILE, HOSTILE),), model=HOSTILE)
    folder = tmp_path / "<script>alert(3)<script>"
    folder.mkdir()
    shown = config(finished, title=HOSTILE, other=HOSTILE)
    html = report_text(folder, result, metadata, shown)
    path = write_page(folder / "report.html", html)
    without = re.sub(r"(?s)<script>.*?</script>", "", html)  # ours, by the policy's digests
    assert "<img" not in without and "<script>alert" not in without and "<!--" not in without
    assert without.count("<script") == without.count('<script type="application/json"') == 2
    assert HOSTILE in unescape(html)
    seen = look(path)
    assert seen.console == ()
    assert "<img" not in seen.elements
    assert "js-plotly-plot" in seen.elements


def test_text_that_got_through_as_markup_could_not_run(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    slip = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
    write_page(path, render("page.html", {}, title="safe", body=Markup(slip)))
    seen = look(path)
    assert "<title>safe</title>" in seen.elements
    assert any("Content Security Policy" in line for line in seen.console)


def test_without_plotly_tables_are_there_and_what_to_install(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page, "plotly_library", lambda: None)
    html = report_text(finished.folder, finished.result, finished.metadata, config(finished))
    assert "<script" not in html and "<figure data-figure" not in html
    assert len(html) < 200_000
    assert html.count("<table>") >= 3
    assert "pip install 'grasp_tune[report]'" in unescape(html)
    write_page(tmp_path / "page.html", html)
    assert look(tmp_path / "page.html").console == ()


def test_the_lines_that_load_the_model_work(finished: Finished) -> None:
    html = finished.report.read_text("utf-8")
    snippets = [
        unescape(found) for found in re.findall(r"<code>(from .*?)</code>", html, re.DOTALL)
    ]
    names: dict[str, Any] = {}
    exec(snippets[0], names)
    rows = torch.zeros(2, 64)
    expected = finished.result.model(rows)
    assert torch.equal(names["model"](rows), expected)
    again: dict[str, Any] = {"model": finished.result.build()}  # type: ignore[misc]
    exec(snippets[1], again)
    assert torch.equal(again["model"].eval()(rows), expected)


def test_adamw_is_trained_with_as_many_calls_where_asked(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "o"
    shutil.copytree(finished.folder, folder)
    with pytest.raises(SystemExit, match="0"):
        app(["report", str(folder), "--adamw"])
    (found,) = re.findall(
        r"AdamW at its defaults ([\d.]+) % with", (folder / "report.html").read_text()
    )
    built = build_parts(saved_experiment(folder))
    peer, model = find_peer("adamw").run(built.problem, 700, 0), built.problem.build(0)
    load_model(model, peer.tensors, "adamw")
    scores = evaluate(model, built).test
    assert scores is not None and f"{100 * (scores.accuracy or 0):.1f}" == found


def test_a_result_without_runs_or_facts_still_has_a_report(finished: Finished) -> None:
    start = finished.result.candidates[0]
    choice = replace(finished.result.choice, key=start.key, candidates=(start,), way="stationary")
    result = replace(finished.result, runs=(), choice=choice, certificate=None)
    text = text_of(report_text(finished.folder, result, None, {"title": None}))
    assert "No run beat the start point" in text
    assert finished.folder.name in text


def test_a_run_under_way_has_a_page_that_loads_itself_again(
    finished: Finished, tmp_path: Path
) -> None:
    folder = tmp_path / "o"
    shutil.copytree(finished.folder, folder)
    (folder / "result.json").unlink()
    with folder_lock(folder):
        html = write_folder_report(folder).read_text("utf-8")
    assert '<meta http-equiv="refresh" content="10">' in html
    assert "This run is under way" in html
    assert "What next?" not in html and "stopped before" not in html
    assert "load_run" not in html  # there is no result to load yet
    html = write_folder_report(folder).read_text("utf-8")  # nobody holds it: it was stopped
    assert 'http-equiv="refresh"' not in html


def test_a_run_keeps_its_page_up_to_date(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "o"
    shutil.copytree(finished.folder, folder)
    for name in ("result.json", "report.html"):
        (folder / name).unlink()
    monkeypatch.setattr(page, "REFRESH", 0)
    live = LiveReport(folder)
    live.on_progress(1, 0.5)
    assert (folder / "report.html").exists()
    (folder / "report.html").unlink()
    live.on_progress(2, 0.5)  # at once: a page may cost a hundredth of the time
    assert not (folder / "report.html").exists()


def test_a_result_from_python_has_a_report_too(tmp_path: Path) -> None:
    result = gt.minimize(workbench.problem(), 300, progress=False)
    result = replace(result, usage=Usage(workers=3, held=20.0, busy=12.2))
    for path in (result.report(tmp_path), result.report(tmp_path / "new" / "mine.html")):
        text = text_of(path.read_text("utf-8"))
        assert "it was" in text and "at the start" in text
        assert "3 workers were held, and busy 61.0 % of the time" in text
        assert "load_run" not in text  # there is no folder to load from
    assert (tmp_path / "report.html").exists()


def test_candidates_scored_on_validation_rows_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = workbench.rows()
    problem = gt.TorchProblem(
        model=workbench.mlp,
        loss=workbench.cross_entropy,
        data=(x, y),
        validation=0.2,
        metric="accuracy",
        choose_by="metric",
        batch_size=16,
    )
    result = replace(
        gt.minimize(problem, 300, progress=False), usage=Usage(workers=1, held=2.0, busy=1.0)
    )
    text = text_of(result.report(tmp_path / "scored.html").read_text("utf-8"))
    assert "compared on minibatches of validation rows" in text
    assert "choosing, on validation rows" in text and "fresh" not in text
    assert "after calls 1 − accuracy ± samples" in text
    assert "1 worker was held" in text

    # Stopped, it has training losses alone, and no metric.
    def check_time(driver: Driver) -> None:
        if driver.search.progress.calls > 200:
            raise TimeUp

    monkeypatch.setattr(Driver, "check_time", check_time)
    stopped = gt.minimize(problem, 1000, progress=False)
    assert stopped.partial and stopped.validation is None and stopped.metric is None
    assert "validation" not in repr(stopped) and "accuracy" not in repr(stopped)
    text = text_of(stopped.report(tmp_path / "stopped.html").read_text("utf-8"))
    assert f"best point so far has a training loss of {number(stopped.score)}" in text
    assert re.search(r"start point – – 0 [\d.]+ 0\.\d+ \d+ ", text)  # with its standard error


def test_a_phone_shows_all_marks(finished: Finished, tmp_path: Path) -> None:
    # In a frame, since a headless window is never narrower than 500 pixels.
    frame = tmp_path / "frame.html"
    address = finished.report.absolute().as_uri()
    frame.write_text(
        f"<!doctype html><iframe src='{address}' style='width: 390px; height: 3000px'></iframe>"
        "<script>onload = () => setTimeout(() => { const page = frames[0].document;"
        "const root = page.documentElement, plots = [...page.querySelectorAll('.plot')];"
        "document.title = (root.scrollWidth <= root.clientWidth) + ' ' + "
        "plots.map(plot => plot.querySelector('.main-svg').clientWidth <= plot.clientWidth);"
        "}, 500)</script>"
    )
    seen = look(frame, "--allow-file-access-from-files", "--window-size=1000,800")
    assert "<title>true true,true</title>" in seen.elements


def test_runs_that_are_not_finite_are_drawn(finished: Finished) -> None:
    curve = ((1, math.inf, math.nan), (2, math.nan, math.nan))
    broken = tuple(
        replace(run, finite=False, losses=(math.nan,), curve=curve) for run in finished.result.runs
    )
    result: Result = replace(finished.result, runs=broken)
    html = report_text(finished.folder, result, finished.metadata, config(finished))
    assert "diverged" in html
