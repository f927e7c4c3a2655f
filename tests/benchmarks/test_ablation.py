"""Variants of the default schedule: each changes something, and only while it runs."""

import pytest

from benchmarks import ablation
from benchmarks.ablation import Variant
from benchmarks.contest import Job, run_job
from benchmarks.records import Table, read_records
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.spec import SweepSpec
from tests.core.simulation import run


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


def test_a_variant_is_another_run_of_the_schedule(peers: Table) -> None:
    for method in ("grasp-promote", "ablation-constant-step"):
        run_job(Job("iris", method, 4, None, peers))
    first, second = read_records(peers)
    assert first.loss != second.loss
