"""Modern workloads: networks of today, small enough for a few seconds on one core.

The rule for held-out workloads was fixed before the first run: the names are sorted by their
SHA-256, and the first third (rounded) is held out. They may not be used to decide anything about
the method. `HELD_OUT` is computed, so a new workload may change the third; check the results then.

Text is the source of Python's standard library, so losses on text depend on the Python version.
"""

import hashlib
from dataclasses import replace

from benchmarks.modern.fields import FIELDS
from benchmarks.modern.language import LANGUAGE
from benchmarks.modern.pretrained import PRETRAINED
from benchmarks.modern.structured import STRUCTURED
from benchmarks.modern.vision import VISION
from benchmarks.workload import Workload

_ALL = (*LANGUAGE, *VISION, *FIELDS, *STRUCTURED, *PRETRAINED)


def held_out(names: list[str]) -> frozenset[str]:
    """Return the third of the names that is held out."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return frozenset(ordered[: round(len(names) / 3)])


HELD_OUT = held_out([item.name for item in _ALL])
MODERN: tuple[Workload, ...] = tuple(
    replace(item, group="modern", held_out=item.name in HELD_OUT) for item in _ALL
)
