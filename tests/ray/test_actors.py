"""Which worker process takes the next task."""

from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial

from grasp_tune.ray.actors import KeptActors, PatientScheduler
from grasp_tune.ray.host import Host


@dataclass
class Waiting:
    """A trial, as far as a scheduler looks at it."""

    name: str
    status: str


class Controller:
    """The part of Tune's controller that a scheduler asks."""

    def __init__(self, *trials: Waiting) -> None:
        self._trials = list(trials)

    def get_trials(self) -> list[Waiting]:
        return self._trials


def choose(cache: KeptActors, *trials: Waiting) -> Any:
    controller: Any = Controller(*trials)
    return PatientScheduler(cache).choose_trial_to_run(controller)


def test_a_free_process_goes_to_the_trial_that_came_last() -> None:
    first, last = Waiting("first", Trial.PENDING), Waiting("last", Trial.PENDING)
    cache = KeptActors()
    assert choose(cache, first, last) is None  # Tune starts processes, in order
    cache.cache_object("cpu", "process")
    assert choose(cache, first, last, Waiting("over", Trial.TERMINATED)) is last
    assert choose(cache, Waiting("busy", Trial.RUNNING)) is None


def test_all_processes_wait_for_the_next_round_where_tasks_are_alike() -> None:
    cache = KeptActors()
    cache.increase_max("cpu")
    cache.decrease_max("cpu")
    assert [cache.cache_object("cpu", name) for name in "abc"] == [True] * 3
    assert list(cache.flush_cached_objects()) == []
    assert cache.pop_cached_object("cpu") == "a"
    assert cache.num_cached_objects == 2
    assert list(cache.flush_cached_objects(force_all=True)) == ["b", "c"]


def test_no_kind_of_task_starves_another() -> None:
    cache = KeptActors()
    for name in "abc":
        cache.cache_object("cpu", name)
    cache.increase_max("cpu")
    cache.increase_max("gpu")  # a trial of another kind waits for what the others hold
    assert list(cache.flush_cached_objects()) == ["a", "b"]  # one of them has a trial of its own
    assert cache.num_cached_objects == 1
    assert not cache.cache_object("cpu", "d")
    cache.decrease_max("gpu")  # it has started
    assert cache.cache_object("cpu", "d")
    assert list(cache.flush_cached_objects()) == []


def test_nobody_asks_outside_of_tune() -> None:
    assert Host.asking() is None
