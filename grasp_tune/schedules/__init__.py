"""The registry of schedules, which decide how the budget is spent.

A schedule is a frozen dataclass: its fields are its options, and its class variable `name` is the
name it is registered under. Importing this module imports no schedule.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import Json, decode, encode

if TYPE_CHECKING:
    from grasp_tune.core.spec import Schedule

Kind = TypeVar("Kind", bound="type[Schedule]")

# A class, or its `module:name`, which is imported on first use.
_KINDS: dict[str, "str | type[Schedule]"] = {
    "cells": "grasp_tune.schedules.cells:Cells",
    "paper": "grasp_tune.schedules.paper:Paper",
    "promote": "grasp_tune.schedules.promote:Promote",
}


def register(kind: Kind) -> Kind:
    """Register a schedule class under its name, which must be new; usable as a decorator."""
    name = str(kind.name)  # a class variable
    if name in _KINDS:
        raise InputError(f"schedule: the name {name!r} is taken")
    _KINDS[name] = kind
    return kind


def schedule_names() -> tuple[str, ...]:
    """Return the names of the registered schedules that need no options."""
    return tuple(sorted(_KINDS.keys() - {"cells"}))  # needs a plan or a search


def find_schedule(given: object) -> "Schedule":
    """Return the schedule for a name, for the output of `written_schedule`, or the given one.

    Raises `InputError` with the known names for anything else.
    """
    if isinstance(given, Mapping):
        options = dict(given)
        kind = _kind(options.pop("name", None), given)
        return decode(kind, {**encode(kind()), **options})
    if isinstance(given, str):
        return _kind(given, given)()
    name = getattr(given, "name", None)
    if not isinstance(given, _kind(name, given)):
        raise InputError(f"schedule: got {given!r}, which is not the registered {name!r}")
    return given


def written_schedule(schedule: "Schedule") -> Json:
    """Return a schedule as JSON: its name, and the options that differ from the defaults."""
    usual = encode(type(schedule)())
    changed = {name: item for name, item in encode(schedule).items() if item != usual[name]}
    return {"name": schedule.name, **changed} if changed else schedule.name


def _kind(name: object, given: object) -> "type[Schedule]":
    found = _KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        known = " or ".join(map(repr, schedule_names()))
        raise InputError(f"schedule: got {given!r}, expected {known}")
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = _KINDS[str(name)] = getattr(import_module(module), attribute)
    return found
