"""Everything that fixes a sweep before it starts, and what a schedule makes of it.

A schedule is a generator: it yields `Round`s of tasks, receives their outcomes (None: lost) and
returns a `Choice`. It looks at nothing else, which makes replay exact.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

from grasp_tune.core import tasks as t
from grasp_tune.core.checkpoint_keys import START, Key
from grasp_tune.core.choice import Choice
from grasp_tune.core.errors import InputError, expect, whole
from grasp_tune.core.methods import Method, NonConvex, method_from_dict
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.optimizers.registry import Factory, own_functions
from grasp_tune.schedules import find_schedule, written_schedule


@dataclass(frozen=True, slots=True)
class Round:
    """Independent tasks that must all end before the schedule goes on."""

    tasks: tuple[t.Task, ...]
    plan: Plan | None = None  # known from the end of the probe
    leader: Key = START  # the checkpoint to return if everything stopped now
    discard: tuple[Key, ...] = ()  # checkpoints that nobody will read again
    last: bool = False  # the schedule is known to yield no other


Known = Mapping[str, t.Outcome | None]  # None: lost
Rounds = Generator[Round, Known, Choice]


class Schedule(Protocol):
    """How a budget is spent: a frozen dataclass whose fields are options with defaults.

    name: what people call it; a class variable.
    default_base: the optimizer that it runs where the method names none; None: the theorem's own.
    rounds: yields the rounds of a sweep and returns its choice.
    """

    @property
    def name(self) -> str: ...
    @property
    def default_base(self) -> str | None: ...
    def __hash__(self) -> int: ...
    def rounds(self, spec: "SweepSpec") -> Rounds: ...


AnySchedule = str | Schedule  # a schedule with its options, or the name of one
EnsembleName = Literal["resample", "window"]


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """One sweep: method, budget, schedule, seed and how the work is cut."""

    method: Method
    budget: int  # T, oracle calls allowed in all
    schedule: AnySchedule = "promote"  # the object, whatever was given
    seed: int = 0
    ensemble: EnsembleName = "resample"
    width: int | None = 0  # short runs that share a task; 0: one each; None: as the probe says
    probe_parts: int | None = None  # tasks that share the probe; None: the schedule decides
    challengers: tuple[str, ...] = ()  # further base optimizers that join the race
    extends: tuple[int, ...] = ()  # budgets of the sweep that had ended before it was extended

    def __post_init__(self) -> None:
        wanted = "NonConvex(), Convex(), ConvexFree() or Deterministic() of grasp_tune"
        expect(isinstance(self.method, Method), "method", repr(self.method), wanted)
        # Limits beyond all use: lists of that length would fill the memory.
        limits = {"budget": (1, 10**18), "width": (0, 10**6), "probe_parts": (1, 10**5)}
        for name, ends in {**limits, "seed": (None, None)}.items():
            if (given := getattr(self, name)) is not None or name not in ("width", "probe_parts"):
                object.__setattr__(self, name, whole(name, given, *ends))
        for before, after in pairwise((0, *self.extends, self.budget)):
            whole("extends", before, 0, after - 1)
        object.__setattr__(self, "schedule", find_schedule(self.schedule))
        named = self.ensemble in ("resample", "window")
        expect(named, "ensemble", repr(self.ensemble), "'resample' or 'window'")

    @classmethod
    def assemble(
        cls,
        method: Method | None = None,
        budget: int = 10_000,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        ensemble: EnsembleName = "resample",
        fused: bool | Literal["auto"] = False,
        probe_parts: int | None = None,
        challengers: Mapping[str, Any] | tuple[str, ...] = (),
    ) -> tuple["SweepSpec", dict[str, Factory]]:
        """Return the spec of what a person asked for, and the optimizers of their own by name.

        method: `NonConvex()` where it is None.
        fused: whether short runs share a task; `auto`: where the probe finds the model light.
        challengers: names of registered optimizers, or a mapping from names to functions.
        """
        expect(fused in (True, False, "auto"), "fused", repr(fused), "True, False or 'auto'")
        width = None if fused == "auto" else WIDTH if fused else 0
        method, names = NonConvex() if method is None else method, tuple(challengers)
        spec = cls(method, budget, schedule, seed, ensemble, width, probe_parts, names)
        return spec, own_functions(method.base, challengers)

    @classmethod
    def of_plan(cls, plan: Plan, seed: int = 0, method: Method | None = None) -> "SweepSpec":
        """Return the spec of a sweep that runs a plan to the letter; `method`: one's own base."""
        method = method or method_from_dict(_without_own_base(encode(plan.method)))
        how: EnsembleName = "window" if plan.ensemble == "window" else "resample"
        return cls(method, plan.budget, "paper", seed, how)

    def task_width(self, start: t.ProbeOutcome) -> int:
        """Return how many short runs share a task, 0 for one each, after the probe."""
        if self.width is not None:
            return self.width
        return WIDTH if start.light and not callable(self.method.base) else 0

    def to_dict(self) -> dict[str, Json]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        schedule = written_schedule(find_schedule(self.schedule))
        return dict(encode({**values, "method": self.method.to_dict(), "schedule": schedule}))

    @classmethod
    def checked(cls, data: Json) -> dict[str, Json]:
        """Return what `to_dict` wrote, checked; a base of one's own is left as its name."""
        values = _complete(data)
        known = cls.from_dict({**values, "method": _without_own_base(values["method"])})
        return {**known.to_dict(), "method": values["method"]}

    @classmethod
    def from_dict(cls, data: Json, own: Mapping[str, Factory] | None = None) -> "SweepSpec":
        """Return the spec that `to_dict` wrote; its base may be one of the user's `own`."""
        values = _complete(data)
        base = (own or {}).get(str(values["method"].get("base")))
        values["method"] = method_from_dict(values["method"], base)
        values["challengers"] = tuple(map(str, values["challengers"]))
        return cls(**{**values, "extends": tuple(values["extends"])})

    def before(self, stored: Json) -> "SweepSpec":
        """Return the spec with the budget of a stored one, where that is no larger."""
        values = _complete(stored)
        if not isinstance(budget := values["budget"], int) or budget > self.budget:
            return self
        return replace(self, budget=budget, extends=tuple(values["extends"]))

    def difference(self, stored: Json) -> str:
        """Return the keys in which a stored spec differs, with both values; empty if none."""
        mine, stored = _complete(self.to_dict()), _complete(stored)
        if mine["budget"] != stored["budget"]:
            stored["extends"] = mine["extends"]
        return "; ".join(dict.fromkeys(_changes("", stored, mine)))


def _complete(data: Json) -> dict[str, Json]:
    """Return a written spec with every key; InputError where it is none."""
    kinds = {"method": dict, "challengers": list, "extends": list}
    names = sorted(SweepSpec.__dataclass_fields__)
    fine = isinstance(data, dict) and sorted(data) == names
    if not fine or not all(isinstance(data[name], kind) for name, kind in kinds.items()):
        words = f"a spec has exactly the keys {names}, with lists of challengers and extends"
        raise InputError(f"{words}; perhaps another version of grasp_tune has written this one")
    return dict(data)


def _changes(name: str, old: Json, new: Json) -> Iterator[str]:
    """Yield what differs between two JSON values, by its innermost key."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _changes(key, old.get(key), new.get(key))
    elif old != new:
        words = f"{name} {old!r} became {new!r}"
        yield words if len(words) < 200 else f"{name} changed"


def _without_own_base(method: dict[str, Json]) -> dict[str, Json]:
    return {**method, "base": None} if ":" in str(method.get("base")) else method


WIDTH = 8  # short runs of one task; more would leave other workers without any
LEAST_BATCH = 8  # fewer runs than this are a task each
SCORE_TASKS = 8  # a round of scoring is cut into at most so many tasks, whoever runs them


def train_tasks(
    name: str, segments: Sequence[t.Segment], width: int, **how: bool
) -> tuple[t.TrainTask, ...]:
    """Return the segments as tasks: one each, or `width` at a time; `how` is what these take."""
    size = width if width and len(segments) >= LEAST_BATCH else 1
    tasks = []
    for at in range(0, len(segments), size):
        chunk = tuple(segments[at : at + size])
        ends = dict.fromkeys(f"{segment.arm.index:03d}" for segment in (chunk[0], chunk[-1]))
        tasks.append(t.TrainTask(f"{name}-run{'to'.join(ends)}", chunk, **how))
    return tuple(tasks)


def score_tasks(
    name: str, samples: Sequence[t.Sample], by: t.Score, *, exact: bool = False
) -> tuple[t.ScoreTask, ...]:
    """Return the samples as a few tasks of about equal size."""
    size = max(1, -(-len(samples) // SCORE_TASKS))
    parts = enumerate(tuple(samples[at : at + size]) for at in range(0, len(samples), size))
    return tuple(t.ScoreTask(f"{name}-part{at:02d}", by, chunk, exact) for at, chunk in parts)


def scores(tasks: Sequence[t.ScoreTask], known: Known) -> list[t.SampleOutcome]:
    """Return what a round of scoring found; candidates whose samples were lost are left out."""
    told = [known[task.id] for task in tasks]
    return [item for out in told if isinstance(out, t.ScoreOutcome) for item in out.samples]
