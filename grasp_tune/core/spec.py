"""Everything that fixes a sweep before it starts: with the problem, the whole input."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from grasp_tune.core.errors import InputError, expect, whole
from grasp_tune.core.methods import Method, NonConvex, method_from_dict
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.core.rounds import Schedule
from grasp_tune.optimizers.registry import Factory, own_functions
from grasp_tune.schedules import find_schedule, written_schedule

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
    width: int = 0  # short runs that share a task; 0: one each
    probe_parts: int | None = None  # tasks that share the probe; None: the schedule decides
    challengers: tuple[str, ...] = ()  # further base optimizers that join the race
    extends: tuple[int, ...] = ()  # budgets of the sweep that had ended before it was extended

    def __post_init__(self) -> None:
        # Limits beyond all use: lists of that length would fill the memory.
        limits = {"budget": (1, 10**18), "width": (0, 10**6), "probe_parts": (1, 10**5)}
        for name, ends in {**limits, "seed": (None, None)}.items():
            if (given := getattr(self, name)) is not None or name != "probe_parts":
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
        width: int = 0,
        probe_parts: int | None = None,
        challengers: Mapping[str, Any] | tuple[str, ...] = (),
    ) -> tuple["SweepSpec", dict[str, Factory]]:
        """Return the spec of what a person asked for, and the optimizers of their own by name.

        Workers need these functions beside the spec, which holds names only.

        method: `NonConvex()` where it is None.
        challengers: names of registered optimizers, or a mapping from names to functions.
        """
        method = NonConvex() if method is None else method
        wanted = "NonConvex(), Convex(), ConvexFree() or Deterministic() of grasp_tune"
        expect(isinstance(method, Method), "method", repr(method), wanted)
        own, names = own_functions(method.base, challengers), tuple(challengers)
        return cls(method, budget, schedule, seed, ensemble, width, probe_parts, names), own

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        seed: int = 0,
        *,
        method: Method | None = None,
        ensemble: EnsembleName | None = None,
    ) -> "SweepSpec":
        """Return the spec of a sweep that runs a plan to the letter.

        method: given where its base is the user's own, of which a plan holds the name only.
        """
        method = method or method_from_dict(_without_own_base(encode(plan.method)))
        how: EnsembleName = "window" if plan.ensemble == "window" else "resample"
        return cls(method, plan.budget, "paper", seed, ensemble or how)

    def to_dict(self) -> dict[str, Json]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        schedule = written_schedule(find_schedule(self.schedule))
        if not self.extends:  # as before there was such a thing
            del values["extends"]
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
    names = set(SweepSpec.__dataclass_fields__)
    if not isinstance(data, dict) or {*data, "extends"} != names:
        words = f"a spec has exactly the keys {sorted(names)}"
        raise InputError(f"{words}; perhaps another version of grasp_tune has written this one")
    values = {"extends": [], **data}
    kinds = (("method", dict), ("challengers", list), ("extends", list))
    if not all(isinstance(values[name], kind) for name, kind in kinds):
        raise InputError("of a spec, challengers and extends are lists, method is an object")
    return values


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
