"""Variants of the default schedule: each changes something."""

import pytest

from benchmarks import ablation
from benchmarks.contest import Job, run_job
from benchmarks.records import Table, read_records
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.spec import SweepSpec
from tests.core.simulation import run


@pytest.mark.parametrize("name", list(ablation.VARIANTS))
def test_every_variant_changes_something(name: str) -> None:
    # One that changes nothing would be reported as an ingredient that does not matter.
    variant = ablation.VARIANTS[name]
    assert variant.base is not None or variant.schedule != ablation.DEFAULT.schedule


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
            "no-second",
            "no-plateau",
            "dead-stays",
            "no-bold",
            "coordinates",
            "one-lane",
            "lanes-for-all",
        )
    ],
)
def test_every_variant_of_the_rungs_changes_what_runs(name: str) -> None:
    _, changed = run(SweepSpec(NonConvex(), 20_000, ablation.VARIANTS[name].schedule))
    assert changed != run(SweepSpec(NonConvex(), 20_000))[1]


def test_a_variant_is_another_run_of_the_schedule(peers: Table) -> None:
    for method in ("grasp-promote", "ablation-constant-step"):
        run_job(Job("iris", method, 4, None, peers))
    first, second = read_records(peers)
    assert first.loss != second.loss
