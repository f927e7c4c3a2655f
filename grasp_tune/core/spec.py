"""Everything that fixes a sweep before it starts: with the problem, the whole input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method, NonConvex, method_from_dict
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.core.rounds import Schedule
from grasp_tune.optimizers.registry import Factory, own_functions
from grasp_tune.schedules import find_schedule, written_schedule

AnySchedule = str | Schedule  # a schedule with its options, or the name of one
EnsembleName = Literal["resample", "window"]
_WHOLE = (("budget", 1, 10**18), ("width", 0, 10**6), ("probe_parts", 1, 10**5))


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

    def __post_init__(self) -> None:
        for name, low, high in _WHOLE:
            got = getattr(self, name)
            if got is None and name == "probe_parts":
                continue
            if not isinstance(got, int) or isinstance(got, bool) or got < low:
                raise InputError(f"{name}: got {got!r}, expected a whole number >= {low}")
            if got > high:  # beyond all use, and a list of that length would fill the memory
                raise InputError(f"{name}: got {got!r}, expected at most {high}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InputError(f"seed: got {self.seed!r}, expected a whole number")
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

        The one place where a sweep is put together; the arguments are those of
        `grasp_tune.minimize`. Workers need the functions beside the spec, which holds names only.

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
        if method is None:
            record = encode(plan.method)
            named = record["base"] is None or ":" not in record["base"]
            method = method_from_dict(record if named else {**record, "base": None})
        how: EnsembleName = "window" if plan.ensemble == "window" else "resample"
        return cls(method, plan.budget, "paper", seed, ensemble or how)

    def to_dict(self) -> dict[str, Json]:
        """Return the spec as JSON values."""
        written = {name: getattr(self, name) for name in self.__dataclass_fields__}
        schedule = written_schedule(find_schedule(self.schedule))
        method, challengers = self.method.to_dict(), list(self.challengers)
        return {**written, "method": method, "schedule": schedule, "challengers": challengers}

    @classmethod
    def checked(cls, data: Json) -> dict[str, Json]:
        """Return what `to_dict` wrote, checked; a base of one's own is left as its name."""
        method = data.get("method") if isinstance(data, dict) else None
        if isinstance(method, dict) and ":" in str(method.get("base")):
            cls.from_dict({**data, "method": {**method, "base": None}})
            return dict(data)
        return cls.from_dict(data).to_dict()

    @classmethod
    def from_dict(cls, data: Json, own: Mapping[str, Factory] | None = None) -> "SweepSpec":
        """Return the spec that `to_dict` wrote.

        own: the user's own optimizers by name; needed where the method's base is one of them.
        """
        names = set(cls.__dataclass_fields__)
        if not isinstance(data, dict) or set(data) != names:
            raise InputError(f"a spec has exactly the keys {sorted(names)}")
        rest = {key: value for key, value in data.items() if key not in ("method", "challengers")}
        if not isinstance(data["challengers"], list):
            raise InputError("challengers must be a list of names")
        if not isinstance(data["method"], dict):
            raise InputError(f"method: got {data['method']!r}, expected an object")
        base = (own or {}).get(str(data["method"].get("base")))
        method = method_from_dict(data["method"], base)
        return cls(method=method, challengers=tuple(map(str, data["challengers"])), **rest)

    def difference(self, stored: Json) -> str:
        """Return the keys in which a stored spec differs, with both values; empty if none.

        Compared as written: a base optimizer of one's own is there by name only.
        """
        mine = self.to_dict()
        if not isinstance(stored, dict) or set(stored) != set(mine):
            raise InputError(f"a spec has exactly the keys {sorted(mine)}")
        changed = (key for key in mine if mine[key] != stored[key])
        return "; ".join(f"{key} {stored[key]!r} became {mine[key]!r}" for key in changed)
