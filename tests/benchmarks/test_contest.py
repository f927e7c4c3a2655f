"""One run of the contest: what is planned, and what is saved."""

import pytest

from benchmarks.contest import Job, plan_jobs, run_job
from benchmarks.records import Table, read_records


@pytest.mark.parametrize("method", ["dog", "grasp-paper", "grasp-promote"])
def test_a_job_saves_what_it_measured(method: str, peers: Table) -> None:
    line = run_job(Job("iris", method, 4, None, peers))
    (record,) = read_records(peers)
    assert f"{record.loss:.5g}" in line
    assert (record.workload, record.method, record.seed) == ("iris", method, 4)
    assert 0 < record.calls <= record.budget == 300
    assert record.loss < record.start_loss
    assert bool(record.source) == method.startswith("grasp")


def test_jobs_come_seed_by_seed(peers: Table) -> None:
    jobs = plan_jobs(["iris", "wine"], ["dog"], [1, 2], None, peers, again=False)
    found = [(job.seed, job.workload) for job in jobs]
    assert found == [(1, "iris"), (1, "wine"), (2, "iris"), (2, "wine")]
