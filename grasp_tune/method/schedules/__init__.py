"""The schedules by name: how the budget is spent."""

from grasp_tune.method.rounds import Schedule
from grasp_tune.method.schedules.paper import paper
from grasp_tune.method.schedules.promote import promote
from grasp_tune.method.setting import Setting


def start(setting: Setting) -> Schedule:
    """Return the setting's schedule, at its beginning."""
    return paper(setting) if setting.schedule == "paper" else promote(setting)
