"""Every case with its full size; the tests run the quick ones with smaller sizes."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.faulting import (
    bodies,
    damage,
    disk,
    endurance,
    hostile,
    interleavings,
    kills,
    locks,
    losses,
    memory,
)
from benchmarks.faulting.row import Row
from benchmarks.faulting.sweep import PHASES


@dataclass(frozen=True, slots=True)
class Case:
    """One case; the command line selects cases by `group`."""

    group: str
    run: Callable[[Path], Row]

    @property
    def name(self) -> str:
        """The case in one line, to show progress."""
        function = getattr(self.run, "func", self.run)
        given = getattr(self.run, "args", ()), getattr(self.run, "keywords", {})
        words = [str(item) for item in (*given[0], *given[1].values())]
        return " ".join([function.__name__.replace("_", " "), *words])


def every_case() -> list[Case]:
    """Return all cases, in the order of the page."""
    phases = tuple(PHASES)
    found: list[tuple[str, Callable[[Path], Row]]] = []

    def add(group: str, function: Callable[..., Row], **options: object) -> None:
        found.append((group, partial(function, **options)))

    for phase in phases:
        add("kills", kills.driver_killed, phase=phase)
    add("kills", kills.driver_killed, phase="training", schedule="paper", method="convex")
    add("kills", kills.driver_killed_at_random, moments=20, budget=1500)
    add("kills", kills.driver_killed_over_and_over, times=8)
    add("kills", kills.worker_killed)
    add("kills", kills.driver_of_workers_killed)
    add("kills", kills.interrupted, number=signal.SIGINT, twice=False)
    add("kills", kills.interrupted, number=signal.SIGINT, twice=True)
    add("kills", kills.interrupted, number=signal.SIGTERM, twice=False)
    for phase in phases:
        add("optuna", bodies.optuna_driver_killed, phase=phase)
    add("optuna", bodies.optuna_worker_killed)
    add("optuna", bodies.optuna_artifact_lost)
    for phase in phases:
        add("ray", bodies.ray_driver_killed, phase=phase)
    add("ray", bodies.ray_worker_killed)
    add("ray", bodies.ray_node_killed)
    for what in ("checkpoint", "state"):
        add("disk", disk.full_while_writing, what=what)
    add("disk", disk.really_full)
    add("disk", disk.obviously_too_small)
    add("disk", disk.unreliable)
    add("disk", disk.broken_for_good)
    for kind in damage.DAMAGES:
        add("damage", damage.checkpoints_damaged_before_resume, damage=kind)
    add("damage", damage.checkpoints_damaged_while_running)
    add("damage", damage.checkpoints_damaged_while_running, workers=2)
    add("damage", damage.chosen_checkpoint_damaged)
    add("damage", damage.state_truncated_everywhere)
    add("damage", damage.state_damaged_beyond_use)
    add("damage", damage.foreign_state)
    for value in losses.VALUES:
        add("losses", losses.loss_goes_wrong_far_away, value=value)
    add("losses", losses.gradient_goes_wrong_far_away)
    add("losses", losses.gradient_goes_wrong_in_one_cell)
    add("losses", losses.everything_diverges)
    for value in ("NaN", "+inf", "-inf"):
        add("losses", losses.start_is_not_finite, value=value)
    add("core", interleavings.fuzz, searches=2000)
    add("core", interleavings.absurd_numbers, searches=2000)
    add("locks", locks.two_drivers)
    add("locks", locks.two_drivers, backend="ray")
    add("locks", locks.lock_text_of_a_stranger)
    add("memory", memory.many_candidates, side=1000, few=30, many=215)
    add("memory", memory.many_candidates_without_a_folder, side=1000, few=30, many=215)
    add("hostile", hostile.hostile_configs)
    add("hostile", hostile.random_configs, seconds=10.0)
    add("hostile", hostile.hostile_results, seconds=20.0)
    add("hostile", hostile.oversized_files)
    add("hostile", hostile.hostile_checkpoints, seconds=10.0)
    add("hostile", hostile.hostile_artifact_ids)
    add("hostile", hostile.hostile_report)
    add("endurance", endurance.clocks_jump)
    add("endurance", endurance.soak, sweeps=500)
    return [Case(group, run) for group, run in found]
