"""The benchmark's commands, on small workloads that need no files."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ablation, contest, datasets, tables
from benchmarks.ablation import Variant
from benchmarks.bases import COARSE, tune
from benchmarks.choosing import Pool, race_choice, simulate, uniform_choice
from benchmarks.command import main, picked, seed_list
from benchmarks.contest import Job, plan_jobs, run_job
from benchmarks.figures import strip_plot
from benchmarks.measures import judge
from benchmarks.records import read_records, record_path
from benchmarks.tables import Cell, read_table, run_cell
from benchmarks.workloads import WORKLOADS
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.spec import SweepSpec
from grasp_tune.peers import find_peer
from tests.core.simulation import run


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Iris with three hundred oracle calls, and no bundle kept from another test."""
    monkeypatch.setitem(
        WORKLOADS,
        "iris",
        replace(WORKLOADS["iris"], budget=300, batch_size=16, held_out=True),
    )
    for cached in (contest._bundle, contest._start_loss, tables._bundle):
        cached.cache_clear()
    yield
    for cached in (contest._bundle, contest._start_loss, tables._bundle):
        cached.cache_clear()


@pytest.mark.parametrize("method", ["dog", "grasp-paper", "grasp-promote"])
def test_a_job_saves_what_it_measured(method: str, tmp_path: Path) -> None:
    line = run_job(Job("iris", method, 4, None, tmp_path))
    (record,) = read_records(tmp_path)
    assert f"{record.loss:.5g}" in line
    assert (record.workload, record.method, record.seed) == ("iris", method, 4)
    assert 0 < record.calls <= record.budget == 300
    assert record.loss < record.start_loss
    assert bool(record.source) == method.startswith("grasp")


def test_what_has_a_result_is_not_run_again(tmp_path: Path) -> None:
    arguments = ["peers", "--only", "iris", "--methods", "sgd,adamw", "--seeds", "3-4"]
    arguments += ["--processes", "1", "--results", str(tmp_path)]
    assert main(arguments) == 0
    path = record_path(tmp_path / "peers", "iris", "sgd", 3)
    changed = re.sub(r'"calls": ?300', '"calls":299', path.read_text())
    path.write_text(changed)
    path.with_name("adamw.4.json").unlink()
    assert main(arguments) == 0
    found = {(record.method, record.seed): record for record in read_records(tmp_path / "peers")}
    assert set(found) == {("sgd", 3), ("sgd", 4), ("adamw", 3), ("adamw", 4)}
    assert found["sgd", 3].calls == 299
    assert main([*arguments, "--again"]) == 0
    found = {(record.method, record.seed): record for record in read_records(tmp_path / "peers")}
    assert found["sgd", 3].calls == 300


def test_jobs_come_seed_by_seed(tmp_path: Path) -> None:
    jobs = plan_jobs(["iris", "wine"], ["dog"], [1, 2], None, tmp_path, again=False)
    found = [(job.seed, job.workload) for job in jobs]
    assert found == [(1, "iris"), (1, "wine"), (2, "iris"), (2, "wine")]


def test_a_failed_job_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> datasets.Arrays:
        raise OSError("no such disk")

    broken = replace(WORKLOADS["iris"], name="broken", load=fail)
    monkeypatch.setitem(WORKLOADS, "broken", broken)
    arguments = ["peers", "--only", "broken,iris", "--methods", "sgd", "--seeds", "3"]
    assert main([*arguments, "--processes", "1", "--results", str(tmp_path)]) == 1
    assert "broken sgd seed 3: FAILED: OSError: no such disk" in capsys.readouterr().err
    assert record_path(tmp_path / "peers", "iris", "sgd", 3).exists()


def test_a_workload_without_its_files_is_skipped_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["peers", "--only", "mnist", "--data", str(tmp_path), "--results", str(tmp_path)]
    assert main([*arguments, "--processes", "1"]) == 0
    assert "mnist: skipped, MNIST/raw/train-images-idx3-ubyte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "minst"], "--only: 'minst' matches nothing; there are digits"),
        (["--methods", "gdo"], "--methods: 'gdo' matches nothing; there are grasp-promote"),
        (["--seeds", "ten"], "--seeds: got 'ten', expected numbers such as 10-14"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_patterns_and_seeds() -> None:
    assert picked(["dog", "ldog", "kt"], "*dog", "--methods") == ["dog", "ldog"]
    assert picked(["grasp-a", "dog"], "[!g]*", "--methods") == ["dog"]
    assert seed_list("3,7-9") == [3, 7, 8, 9]


def test_random_columns_are_powers_of_ten_within_two() -> None:
    arrays = datasets.sklearn_table("iris")
    factors = (datasets.random_columns(arrays.x) / arrays.x)[arrays.x.min(dim=1).values > 0]
    assert float(factors.std(dim=0).max()) < 1e-3 * float(factors.max())  # one a column
    assert 1e-2 <= float(factors.min()) < float(factors.max()) <= 1e2


def test_judging_does_not_depend_on_the_peer_that_came_before() -> None:
    bundle = WORKLOADS["iris"].bundle(None)
    before = judge(bundle, None, 5)
    find_peer("momentum").run(bundle.problem, 20, seed=5)
    assert judge(bundle, None, 5) == before


# ---- tables --------------------------------------------------------------------------------------


def test_tuning_finds_the_smallest_of_a_valley() -> None:
    # |log2(value) - 3.3|: the grid of quarter powers reaches 2^3.25.
    tuned = tune(lambda value: abs(math.log2(value) - 3.3) + 1.0)
    assert tuned.value == pytest.approx(2.0**3.25)
    assert len(tuned.tried) <= len(COARSE) + 6


@pytest.mark.parametrize("kind", ["smooth", "universal", "nonconvex"])
def test_a_cell_of_a_table_is_measured_against_its_yardstick(
    kind: tables.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.Table("small", "small", kind, "iris", 200, ("a", "b"))
    monkeypatch.setitem(tables.TABLES, "small", table)
    pair, share = (0.1, 0.01), 16
    run_cell(Cell("small", "tuned", (0.0, 0.0), 1, 2, None, tmp_path))
    run_cell(Cell("small", "paper", pair, share, 2, None, tmp_path))
    found = read_table(table, [2], tmp_path)
    assert found is not None
    own, tuned = found.cells["paper", pair, share], found.tuned
    assert math.isfinite(own.quality)
    assert found.rho("paper", pair, share) == pytest.approx(own.quality / tuned.quality - 1.0)
    assert found.smallest.quality <= tuned.quality and found.smallest.loss >= tuned.loss
    assert (own.loss == own.quality) == (kind != "nonconvex")
    assert found.rho("promote", pair, share) is None  # not run


# ---- the final choice ----------------------------------------------------------------------------


def pool(noise: float, shared: float) -> Pool:
    """Sixteen candidates whose losses are 1.00, 1.02, ... with own and with common noise."""
    rng = np.random.default_rng(8)
    truth = 1.0 + 0.02 * np.arange(16)
    samples = truth[:, None] + noise * rng.normal(size=(16, 4000))
    samples += shared * rng.normal(size=4000)
    return Pool("made", "value", truth, samples, uniform=60)


def test_without_noise_both_ways_choose_the_best() -> None:
    rng = np.random.default_rng(1)
    assert uniform_choice(pool(0.0, 0.0), 1, rng) == 0
    assert race_choice(pool(0.0, 0.0), 16 * 4, rng) == 0


def test_pairing_makes_shared_noise_harmless() -> None:
    costs = simulate(pool(noise=0.01, shared=0.5), trials=200)
    uniform = next(cost for cost in costs if cost.way == "uniform")
    race = next(cost for cost in costs if cost.way == "race" and cost.share == 0.2)
    # Independent samples: the noise of a mean is 0.5 / sqrt(60) = 0.065, three steps of the grid.
    assert uniform.failures > 30.0
    assert race.failures < 5.0
    assert race.calls == 16 * 60 // 5


# ---- ablation, figures, report -------------------------------------------------------------------


def test_a_variant_changes_its_values_and_puts_them_back() -> None:
    before = ablation._HOME
    variant = Variant("x", "x", {"benchmarks.ablation:_HOME": "elsewhere"})
    with variant.applied():
        assert ablation._HOME == "elsewhere"
    assert before == ablation._HOME


def test_a_variant_of_nothing_is_refused() -> None:
    variant = Variant("x", "x", {"benchmarks.ablation:NO_SUCH": 1})
    with (
        pytest.raises(ValueError, match=r"benchmarks.ablation has no NO_SUCH"),
        variant.applied(),
    ):
        pass


@pytest.mark.parametrize("name", list(ablation.VARIANTS))
def test_every_variant_still_finds_what_it_changes(name: str) -> None:
    with ablation.VARIANTS[name].applied():
        pass


@pytest.mark.parametrize(
    "name",
    # Another base is another method; the others change what happens within a task, or what is
    # done about losses that the simulation does not have.
    [
        name
        for name, item in ablation.VARIANTS.items()
        if item.base is None
        and item.name
        not in (
            "constant-step",
            "no-undo",
            "no-calm",
            "no-bold",
            "no-seek",
            "seek-less",
            "no-handicap",
        )
    ],
)
def test_every_variant_of_the_rungs_changes_what_runs(name: str) -> None:
    spec = SweepSpec(NonConvex(), 20_000)
    with ablation.VARIANTS[name].applied():
        _, changed = run(spec)
    assert changed != run(spec)[1]


def test_a_variant_is_another_run_of_the_schedule(tmp_path: Path) -> None:
    for method in ("grasp-promote", "ablation-constant-step"):
        run_job(Job("iris", method, 4, None, tmp_path))
    first, second = read_records(tmp_path)
    assert first.loss != second.loss


def test_a_figure_escapes_its_words() -> None:
    made = strip_plot("<b>", "&", [("a<b", [1.0, math.inf])], low=0.1, high=10.0, highlight="")
    assert "<b>" not in made
    assert "a&lt;b" in made
    assert 'cx="710.0"' in made  # infinite: at the right end, 190 + 520


def test_the_report_is_made_of_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    assert main(["report", "--results", str(results), "--docs", str(docs)]) == 0
    assert (docs / "results.md").read_text().startswith("# Results")
    for method in ("dog", "sgd"):
        run_job(Job("iris", method, 4, None, results / "peers"))
    assert main(["report", "--results", str(results), "--docs", str(docs)]) == 0
    page = (docs / "results.md").read_text()
    assert "| iris softmax, raw columns, *held out* | 300 |" in page
    assert "DoG, averaged" in page
    assert (docs / "figures" / "peers.svg").read_text().startswith("<svg")
    assert capsys.readouterr().out.splitlines()[-1] == str(docs / "results.md")
