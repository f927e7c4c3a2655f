"""The plan that a study follows: written once, read by every process that joins."""

from dataclasses import dataclass

import optuna

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.executors.study import PLAN, set_study_json, study_json


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan and what goes with it on a study."""

    plan: Plan
    parameter: str
    seed: int
    probe: ProbeOutcome | None = None  # what the plan was made from, where we probed

    def to_dict(self) -> dict[str, Json]:
        """Return it as JSON values."""
        return {
            "plan": self.plan.to_dict(),
            "parameter": self.parameter,
            "seed": self.seed,
            "probe": None if self.probe is None else encode(self.probe),
        }

    @classmethod
    def from_dict(cls, data: Json) -> "StoredPlan":
        """Return what `to_dict` wrote."""
        if not isinstance(data, dict) or set(data) != {"plan", "parameter", "seed", "probe"}:
            raise InputError("not a plan of a GraspSampler")
        probe = data["probe"]
        return cls(
            Plan.from_dict(data["plan"]),
            str(data["parameter"]),
            int(data["seed"]),
            None if probe is None else decode(ProbeOutcome, probe),
        )

    def difference(self, other: "StoredPlan") -> str:
        """Return in what two differ, with both values."""
        mine, theirs = self.to_dict(), other.to_dict()
        flat = {**mine, **mine["plan"]}, {**theirs, **theirs["plan"]}
        names = [name for name in flat[0] if name not in ("plan", "probe", "cells")]
        found = [
            f"{name} {flat[0][name]!r} there, {flat[1][name]!r} here"
            for name in names
            if flat[0][name] != flat[1][name]
        ]
        return "; ".join(found) or "its cells differ"


def stored_plan(study: optuna.Study) -> StoredPlan | None:
    """Return the plan on the study, None where there is none."""
    data = study_json(study, PLAN)
    return None if data is None else StoredPlan.from_dict(data)


def agree_on_plan(study: optuna.Study, wanted: StoredPlan) -> StoredPlan:
    """Return the plan on the study, after writing `wanted` where there is none.

    Of two processes that write at the same time one wins, for both: what is there in the end is
    read again. Later writers do not exist, because they find a plan.
    """
    found = stored_plan(study)
    if found is None:
        set_study_json(study, PLAN, wanted.to_dict())
        found = stored_plan(study)
        assert found is not None
    return found
