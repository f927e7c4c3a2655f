"""Each ingredient's effect: the default schedule with one ingredient changed or taken away.

A variant is a set of names of the schedule's modules and the values put in their places for the
length of one run. The default itself is the contest's `grasp-promote`.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

_HOME = "grasp_tune.method.schedules.promote"


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of the default schedule."""

    name: str  # of its results: `ablation-<name>`
    title: str
    values: Mapping[str, object] = field(default_factory=dict)  # "module:NAME" or "NAME" -> value

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the values in place, and back afterwards.

        Raises `ValueError` for a name that the module does not have: a variant that changes
        nothing would be reported as an ingredient that does not matter.
        """
        with ExitStack() as stack:
            for key, value in self.values.items():
                module, _, name = key.rpartition(":")
                home = importlib.import_module(module or _HOME)
                if not hasattr(home, name):
                    raise ValueError(f"variant {self.name}: {home.__name__} has no {name}")
                stack.enter_context(patch.object(home, name, value))
            yield


DEFAULT = Variant("none", "the default")

_ALL: tuple[Variant, ...] = ()
VARIANTS: Mapping[str, Variant] = {f"ablation-{item.name}": item for item in _ALL}
