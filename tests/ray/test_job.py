"""One task in a thread: waiting, errors, giving up."""

import threading

import pytest

from grasp_tune.ray.job import Cancelled, Count, Job


def test_a_job_hands_over_its_product() -> None:
    gate = threading.Event()
    job = Job(lambda: gate.wait(60) and 7, "seven")
    assert not job.wait(0.01)
    gate.set()
    assert job.wait()
    assert job.product() == 7


def test_an_error_is_raised_where_the_product_is_asked_for() -> None:
    def broken() -> int:
        raise KeyError("lost")

    job = Job(broken, "broken")
    assert job.wait()
    with pytest.raises(KeyError, match="lost"):
        job.product()


def test_a_task_that_is_given_up_ends_at_its_next_call() -> None:
    seen: list[int] = []
    count = Count(seen.append)
    count(2)
    count(3)
    assert count.calls == 5
    count.cancelled = True
    with pytest.raises(Cancelled):
        count(1)
    assert seen == [2, 3]
