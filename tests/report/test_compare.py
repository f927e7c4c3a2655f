"""Comparisons: the same calls for all, one record per method and seed, resumable."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_tune.config import ConfigError, experiment_from
from grasp_tune.config.build import build_parts
from grasp_tune.config.schema import Experiment
from grasp_tune.core.errors import MissingExtra
from grasp_tune.peers.registry import PEERS, Peer, installed_peers
from grasp_tune.peers.session import PeerResult, Session
from grasp_tune.report.compare import (
    OURS,
    TITLES,
    Comparison,
    MethodSummary,
    Record,
    chosen_methods,
    compare,
    headline,
    method_figure,
    run_method,
    write_comparison,
)
from grasp_tune.report.evaluation import Quality, Scores

METHODS = ("grasp-promote", "grasp-paper", "adamw", "range-test")


def experiment(**keys: Any) -> Experiment:
    problem = {"dataset": "digits", "model": "softmax", "batch_size": 16}
    return experiment_from(
        {"title": "<b>Digits</b>", "problem": problem, "method": "convex", "budget": 500, **keys}
    )


def test_a_comparison_spends_the_same_calls_and_goes_on(tmp_path: Path) -> None:
    lines: list[str] = []
    first = compare(experiment(), tmp_path / "c", methods=METHODS, seeds=2, tell=lines.append)
    assert re.match(r"8 runs of 500 calls each: about (< 1|\d+) s$", lines.pop(0))
    assert len(lines) == 8 and lines[0].startswith("[1/8] GRASP, promote, seed 0: loss ")
    for item in first.methods:
        assert [record.seed for record in item.records] == [0, 1]
        assert all(0 < record.calls <= 500 for record in item.records)
    medians = [item.rank("train_loss") for item in first.methods]
    assert medians == sorted(medians)

    (tmp_path / "c" / "records" / "adamw-1.json").unlink()
    lines.clear()
    again = compare(experiment(), tmp_path / "c", methods=METHODS, seeds=2, tell=lines.append)
    assert lines.pop(0).startswith("1 run of 500 calls each: about ")
    assert len(lines) == 1 and "AdamW, defaults, seed 1" in lines[0]
    before = {s.method: [r.quality for r in s.records] for s in first.methods}
    assert {s.method: [r.quality for r in s.records] for s in again.methods} == before

    page = write_comparison(again).read_text("utf-8")
    assert "&lt;b&gt;Digits&lt;/b&gt;" in page and "<b>" not in page
    assert sum(len(trace.x) for trace in method_figure(again).data) == 8
    assert 'data-figure="methods"' in page
    stored = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert {item["method"] for item in stored["methods"]} == set(METHODS)
    with pytest.raises(ConfigError, match=r"the folder of another run \(budget was 500, now 600\)"):
        compare(experiment(budget=600), tmp_path / "c", methods=METHODS)


def test_a_budget_too_small_for_the_paper_is_a_remark(tmp_path: Path) -> None:
    found = compare(experiment(budget=60), tmp_path / "c", methods=("grasp-paper", "sgd"), seeds=1)
    paper = next(item for item in found.methods if item.method == "grasp-paper")
    assert paper.records[0].quality is None
    assert paper.remark.startswith("needs a budget of ")
    assert found.methods[-1] is paper  # last: it has no loss
    assert "needs a budget of" in write_comparison(found).read_text("utf-8")


def test_a_peer_that_fails_is_a_remark_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: Session) -> PeerResult:
        session.run().steps(1)
        raise RuntimeError("sparse gradients\n are not supported")

    peer = replace(PEERS["sgd"], kind=broken)
    monkeypatch.setattr("grasp_tune.report.compare.PEERS", {**PEERS, "sgd": peer})
    lines: list[str] = []
    given: dict[str, Any] = {"methods": ("sgd", "adamw"), "seeds": 1}
    found = compare(experiment(budget=60), tmp_path / "c", tell=lines.append, **given)
    assert [item.method for item in found.methods] == ["adamw", "sgd"]
    assert found.methods[1].remark == "failed: sparse gradients are not supported"
    assert "SGD, defaults, seed 0: failed: sparse gradients are not supported" in lines[1]
    assert "failed: sparse gradients" in write_comparison(found).read_text("utf-8")
    monkeypatch.undo()
    again = compare(experiment(budget=60), tmp_path / "c", **given)
    assert not any(item.remark for item in again.methods)


def test_all_that_is_installed_takes_part_unless_named() -> None:
    assert chosen_methods(()) == (*OURS, *(peer.name for peer in installed_peers()))
    assert chosen_methods(("adamw", "adamw", "grasp-paper")) == ("adamw", "grasp-paper")
    with pytest.raises(ConfigError, match=r"--methods: got 'adamv', .* \(did you mean adamw\?\)"):
        chosen_methods(("adamv",))


def test_a_method_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "installed", False)
    for name, package, extra in (("asha", "ray", "ray"), ("dog", "dog", "bench")):
        with pytest.raises(MissingExtra, match=rf"needs {package}, .*grasp_tune\[{extra}\]"):
            chosen_methods((name,))


def test_exact_gradients_are_not_compared(tmp_path: Path) -> None:
    exact = experiment_from({"problem": {"dataset": "digits"}, "method": "deterministic"})
    with pytest.raises(ConfigError, match="compare: method: got deterministic, expected a method"):
        compare(exact, tmp_path / "c")


def test_summaries_by_hand() -> None:
    def record(seed: int, loss: float, right: float | None, *, diverged: bool = False) -> Record:
        quality = Quality(Scores(8, loss), None if right is None else Scores(8, 1.0, right))
        return Record("sgd", seed, 9, 1.0, diverged, "", quality)

    nan = float("nan")
    rows = (record(0, 3.0, 0.5), record(1, nan, None, diverged=True), record(2, 1.0, 0.75))
    summary = MethodSummary("sgd", "SGD", rows)
    assert summary.typical("train_loss") == 2.0  # the median of 1 and 3
    assert summary.typical("metric") == 0.625
    assert summary.remark == "1 of 3 diverged"
    assert MethodSummary("sgd", "SGD", (rows[1],)).rank("train_loss") == float("inf")


def test_losses_of_one_size_are_drawn_on_a_plain_scale(tmp_path: Path) -> None:
    found = compare(experiment(), tmp_path / "c", methods=("sgd",), seeds=2)
    figure = method_figure(found)
    assert sum(len(trace.x) for trace in figure.data) == 2
    assert figure.layout.xaxis.type is None


def test_the_order_is_what_the_user_asks_for(tmp_path: Path) -> None:
    def order(sort: str) -> list[str]:
        found = compare(experiment(), tmp_path / "c", methods=("sgd", "adamw"), seeds=1, sort=sort)
        return [item.method for item in found.methods]

    assert order("metric") == order("test_loss") == ["adamw", "sgd"]  # sgd's step is far too small
    stored = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert stored["metric"] == "accuracy"
    first = stored["methods"][0]
    assert first["metric"] == first["records"][0]["quality"]["test"]["accuracy"] > 0.5
    seconds = {item["method"]: item["seconds"] for item in stored["methods"]}
    assert order("seconds") == sorted(seconds, key=lambda name: seconds[name])
    with pytest.raises(ConfigError, match="--sort: got 'name', expected one of train_loss, test_"):
        order("name")


def test_a_metric_of_the_config_is_shown_and_sorted_by(tmp_path: Path) -> None:
    problem = {"dataset": "digits", "model": "softmax", "batch_size": 16, "metric": "f1"}
    wanted = experiment(problem=problem, budget=100)
    found = compare(wanted, tmp_path / "c", methods=("sgd", "adamw"), seeds=1, sort="metric")
    assert [item.method for item in found.methods] == ["adamw", "sgd"]
    quality = found.methods[0].records[0].quality
    assert quality is not None and quality.metric == "f1"
    assert quality.test is not None and quality.test.metric is not None
    assert quality.baseline is not None
    assert quality.test.metric > (quality.baseline.metric or 0.0)
    assert "test f1" in write_comparison(found).read_text("utf-8")


def test_without_test_rows_the_validation_rows_are_shown_and_sorted_by(tmp_path: Path) -> None:
    rows = "".join(f"{k % 7},{k % 5},{int(k % 7 > 3)}\n" for k in range(80))
    (tmp_path / "a.csv").write_text("a,b,y\n" + rows)
    problem = {"dataset": {"name": "csv", "path": str(tmp_path / "a.csv")}, "batch_size": 8}
    given: dict[str, Any] = {"methods": ("sgd", "adamw"), "seeds": 1, "sort": "metric"}
    with pytest.raises(ConfigError, match="metric without test or validation rows, expected train"):
        compare(experiment(problem=problem, budget=60), tmp_path / "none", **given)
    held = experiment(problem={**problem, "validation": 0.25}, budget=60)
    found = compare(held, tmp_path / "c", **given)
    assert all(item.values("metric") and item.values("test_loss") for item in found.methods)
    text = write_comparison(found).read_text("utf-8")
    assert "Best validation accuracy of 2 methods" in text and "There are no test rows" in text


def test_all_methods_get_the_same_number_of_threads(tmp_path: Path) -> None:
    seen: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(torch.get_num_threads())
        return F.cross_entropy(model(batch[0]), batch[1])

    built = build_parts(experiment(budget=60))
    built = replace(built, problem=replace(built.problem, loss=loss))
    before, counts = torch.get_num_threads(), {}
    torch.set_num_threads(2)
    try:
        for name in ("grasp-promote", "adamw", "tpe"):
            seen.clear()
            run_method(experiment(budget=60), built, name, 0)
            trained = seen[: 60 - 1]  # what comes later judges all rows, with all threads
            counts[name] = set(trained)
    finally:
        torch.set_num_threads(before)
    assert counts["grasp-promote"] == counts["adamw"] == counts["tpe"] == {1}


def summary(name: str, *losses: float) -> MethodSummary:
    found = enumerate(losses)
    records = [Record(name, at, 9, 1.0, False, "", Quality(Scores(8, loss))) for at, loss in found]
    return MethodSummary(name, TITLES[name], tuple(records))


def test_the_first_sentence_says_where_ours_stands(tmp_path: Path) -> None:
    ours, other = summary("grasp-promote", 0.25, 0.5), summary("sgd", 0.125)
    found = Comparison(experiment(), tmp_path, (ours, other), (), "accuracy", "train_loss")
    assert headline(found) == (
        "Best training loss of 2 methods: GRASP, promote: 0.375. Next is SGD, defaults: 0.125."
    )
    found = replace(found, methods=(other, ours))
    assert headline(found).endswith("The best of ours is number 2, GRASP, promote: 0.375.")


def test_a_method_far_off_does_not_squeeze_the_others(tmp_path: Path) -> None:
    found = (summary("grasp-promote", 0.1), summary("sgd", 0.2, 0.4), summary("adamw", 1e12))
    methods = (*found, summary("dog"))
    comparison = Comparison(experiment(), tmp_path, methods, (), "accuracy", "train_loss")
    figure = method_figure(comparison)
    assert {trace.name: list(trace.x) for trace in figure.data} == {
        "ours": [0.1],
        "others": [0.2, 0.4],
        "off the scale": [pytest.approx(0.6)],
    }
    assert "1e+12" in figure.data[2].text[0]
    # Every method has its name beside its line, and the figure is high enough for all.
    assert list(figure.layout.yaxis.tickvals) == [item.title for item in methods]
    assert list(figure.layout.yaxis.range) == [3.5, -0.5]  # also the last one, which has no dot
    assert figure.layout.height >= 4 * 20
