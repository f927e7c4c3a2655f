"""The schedules by name: how the budget is spent."""

from grasp_tune.core.rounds import Schedule
from grasp_tune.core.spec import SweepSpec
from grasp_tune.schedules.paper import paper
from grasp_tune.schedules.promote import promote


def start(spec: SweepSpec) -> Schedule:
    """Return the spec's schedule, at its beginning."""
    return paper(spec) if spec.schedule == "paper" else promote(spec)
