"""Everything that fixes a sweep before it starts: with the problem, the whole input."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method, NonConvex, method_from_dict
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.core.rounds import Schedule
from grasp_tune.core.validation import whole
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
        whole("budget", self.budget, 1, 10**18)
        limits = (("width", 0, 10**6), ("probe_parts", 1, 10**5), ("seed", None, None))
        for name, low, high in limits:
            if (given := getattr(self, name)) is not None or name != "probe_parts":
                object.__setattr__(self, name, whole(name, given, low, high))
        for before, after in pairwise((0, *self.extends, self.budget)):
            whole("extends", before, 0, after - 1)
        object.__setattr__(self, "schedule", find_schedule(self.schedule))
        if self.ensemble not in ("resample", "window"):
            raise InputError(f"ensemble: got {self.ensemble!r}, expected 'resample' or 'window'")

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

        The one place where a sweep is put together. Workers need the functions beside the spec,
        which holds names only.

        method: `NonConvex()` where it is None.
        width: how many short runs share a task; 0: one each.
        challengers: names of registered optimizers, or a mapping from names to functions.
        """
        method = NonConvex() if method is None else method
        if not isinstance(method, Method):
            raise InputError(
                f"method: got {method!r}, expected NonConvex(), Convex(), ConvexFree() or "
                "Deterministic() of grasp_tune"
            )
        own = own_functions(method.base, challengers)  # an unknown name is an error now
        names = tuple(challengers)
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

        method: given where the plan's has a base optimizer of the user's own; without it such a
            base is left out, since a plan holds its name only.
        ensemble: the plan's own where it is None.
        """
        method = method or method_from_dict(_without_own_base(encode(plan.method)))
        how: EnsembleName = "window" if plan.ensemble == "window" else "resample"
        return cls(method, plan.budget, "paper", seed, ensemble or how)

    def to_dict(self) -> dict[str, Json]:
        """Return the spec as JSON values."""
        written = {name: getattr(self, name) for name in self.__dataclass_fields__}
        schedule = written_schedule(find_schedule(self.schedule))
        written |= {"method": self.method.to_dict(), "schedule": schedule}
        written |= {name: list(getattr(self, name)) for name in ("challengers", "extends")}
        if not self.extends:  # as before there was such a thing
            del written["extends"]
        return written

    @classmethod
    def checked(cls, data: Json) -> dict[str, Json]:
        """Return what `to_dict` wrote, checked; a base of one's own is left as its name."""
        method = data.get("method") if isinstance(data, dict) else None
        known = {**data, "method": _without_own_base(method)} if isinstance(method, dict) else data
        return {**cls.from_dict(known).to_dict(), "method": method}

    @classmethod
    def from_dict(cls, data: Json, own: Mapping[str, Factory] | None = None) -> "SweepSpec":
        """Return the spec that `to_dict` wrote.

        own: the user's own optimizers by name; needed where the method's base is one of them.
        """
        names = set(cls.__dataclass_fields__)
        if not isinstance(data, dict) or {*data, "extends"} != names:
            raise InputError(f"a spec has exactly the keys {sorted(names)}")
        method, lists = data["method"], (data["challengers"], data.get("extends", []))
        if not all(isinstance(item, list) for item in lists) or not isinstance(method, dict):
            raise InputError("of a spec, challengers and extends are lists, method is an object")
        known = method_from_dict(method, (own or {}).get(str(method.get("base"))))
        challengers, extends = tuple(map(str, lists[0])), tuple(lists[1])
        return cls(**{**data, "method": known, "challengers": challengers, "extends": extends})

    def before(self, stored: Json) -> "SweepSpec":
        """Return the spec with the budget of a stored one, where that is no larger."""
        values = stored if isinstance(stored, dict) else {}
        budget, extends = values.get("budget"), tuple(values.get("extends", ()))
        if not isinstance(budget, int) or budget > self.budget:
            return self
        return replace(self, budget=budget, extends=extends)

    def difference(self, stored: Json) -> str:
        """Return the keys in which a stored spec differs, with both values; empty if none.

        Compared as written: a base optimizer of one's own is there by name only.
        """
        mine = {"extends": [], **self.to_dict()}
        if not isinstance(stored, dict) or {*stored, "extends"} != set(mine):
            raise InputError(f"a spec has exactly the keys {sorted(mine)}")
        stored = {"extends": [], **stored}
        if mine["budget"] != stored["budget"]:
            stored["extends"] = mine["extends"]
        changed = (key for key in mine if mine[key] != stored[key])
        return "; ".join(f"{key} {stored[key]!r} became {mine[key]!r}" for key in changed)


def _without_own_base(method: dict[str, Json]) -> dict[str, Json]:
    return {**method, "base": None} if ":" in str(method.get("base")) else method
