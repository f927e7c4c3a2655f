"""`plan` says what a run would do, for every config that ships, and trains nothing."""

from pathlib import Path

import pytest

import grasp_tune as gt
from tests.cli.conftest import Command

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_can_be_planned_without_its_data(command: Command, path: Path) -> None:
    ended = command("plan", path, "--grad-norm", "1.3", "--value", "2.3", "--format", "json")
    assert ended.code == 0, ended.err
    plan = ended.json
    assert 0 < plan["calls"]["total"] <= plan["budget"]
    assert plan["calls"]["total"] == sum(phase["calls"] for phase in plan["phases"])
    low, high = plan["range"]
    assert 0 < low <= high
    # A schedule that measures distances has no range; every other one has.
    assert (low == high) == (plan["quantity"] == "distance share")
    assert plan["seconds"] is None and plan["disk_bytes"] is None
    assert command("plan", path, "--grad-norm", "1.3").code == 0  # the table


def test_the_papers_plan_is_the_librarys(command: Command) -> None:
    path = next(path for path in CONFIGS if path.name == "nonconvex-digits.yaml")
    shown = command("plan", path, "--grad-norm", "1.3", "--format", "json").json
    plan = gt.NonConvex().plan(budget=10_000, grad_norm=1.3)
    assert shown["cells"] == [
        {"index": cell.index, "value": cell.value, "budget": cell.budget} for cell in plan.cells
    ]
    assert shown["calls"]["train"] == plan.training_calls
    assert shown["calls"]["probe"] == plan.probe_calls == 2500
    table = command("plan", path, "--grad-norm", "1.3").out
    assert f"{plan.cells[-1].value:.6g}" in table


def test_plan_times_a_few_steps_and_writes_nothing(command: Command, place: Path) -> None:
    before = sorted(place.iterdir())
    plan = command("plan", "small.yaml", "--format", "json").json
    assert plan["seconds"] > 0 and plan["disk_bytes"] > 0 and plan["timed_calls"] > 0
    assert plan["start"]["measured"]
    # Softmax from zero weights: the loss is ln 2 on every row.
    assert plan["start"]["value"] == pytest.approx(0.6931472, abs=1e-6)
    table = command("plan", "small.yaml").out
    assert "not counted" in table and "A small one" in table
    assert sorted(place.iterdir()) == before


def test_a_start_without_gradient_is_told(command: Command, place: Path) -> None:
    ended = command("plan", "small.yaml", "--grad-norm", "0", "--set", "schedule=paper")
    assert ended.code == 0
    assert "nothing would be trained" in ended.out


def test_plan_tells_what_is_done_to_a_table_and_counts_validation_rows_apart(
    command: Command, place: Path
) -> None:
    cities = ("Oslo", "Rome", "Lima")
    rows = [f"{cities[at % 3]},{at % 7 or ''},{at % 2}" for at in range(200)]
    (place / "table.csv").write_text("\n".join(["city,rooms,sold", *rows]))
    (place / "table.yaml").write_text(
        "problem:\n"
        "  dataset: {name: csv, path: table.csv, target: sold}\n"
        "  validation: 0.1\n"
        "budget: 300\n"
    )
    ended = command("plan", "table.yaml")
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "180 training rows in minibatches of 64, 20 validation rows;" in text
    assert "city (3 words)" in text and "Blanks were filled" in text
