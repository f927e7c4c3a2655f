"""Which worker process takes the next task: two rules that suit rounds of short tasks.

Tune keeps processes for sweeps of long trials. It gives a process that has become free to the trial
that has waited longest, and cancels the process which was just being started for that trial; where
tasks are shorter than a start, the second process never comes to life. And when a round ends it
keeps one process and ends the others, to start them again for the next round.
"""

from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.utils.object_cache import _ObjectCache

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class PatientScheduler(FIFOScheduler):
    """First come, first served; but a free process goes to the trial that came last.

    For that one no process is being started yet. The order of tasks within a round is of no
    consequence.
    """

    def __init__(self, cache: _ObjectCache) -> None:
        super().__init__()
        self._cache = cache

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Trial | None:
        """Return the trial for a free process; None lets Tune start processes in order."""
        if not self._cache.num_cached_objects:
            return None
        for trial in reversed(tune_controller.get_trials()):
            if trial.status == Trial.PENDING:
                return trial
        return None


class KeptActors(_ObjectCache):
    """Processes that wait for the next round: all of them, until another kind needs their room.

    Where tasks need different resources, a process that waits for one kind holds what a trial of
    another kind may be waiting for: as soon as there is such a trial, Tune's own rule holds.
    """

    def _in_the_way(self, key: Hashable) -> bool:
        return any(count > 0 for other, count in self._max_num_objects.items() if other != key)

    def cache_object(self, key: Hashable, obj: Any) -> bool:
        """Keep a process; returns whether it is kept."""
        if self._in_the_way(key):
            return bool(super().cache_object(key, obj))
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        """Yield the processes to end."""
        if force_all:
            yield from super().flush_cached_objects(force_all)
            return
        for key, waiting in self._cached_objects.items():
            while self._in_the_way(key) and len(waiting) > self._max_num_objects[key]:
                self._num_cached_objects -= 1
                yield waiting.pop(0)


def keep_actors(controller: "TuneController") -> None:
    """Have worker processes reused by these rules, where Tune is built as it is known here."""
    if not hasattr(controller, "_reuse_actors"):
        return
    controller._reuse_actors = True
    cache = getattr(controller, "_actor_cache", None)
    scheduler = getattr(controller, "_scheduler_alg", None)
    if type(cache) is _ObjectCache and not cache.num_cached_objects:
        kept = KeptActors()
        kept._max_num_objects.update(cache._max_num_objects)  # trials staged by a restored run
        controller._actor_cache = kept
        if type(scheduler) is FIFOScheduler:
            controller._scheduler_alg = PatientScheduler(kept)
