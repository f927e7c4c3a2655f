"""Modern workloads: networks of today, small enough for a few seconds of one core.

The rule for what is held out was written down before the first run: the names are ordered by their
SHA-256, and the first third (rounded) is held out. Nothing about the method may be decided by
looking at those; `HELD_OUT` is computed, so a new workload can change the third, and then results
have to be read again.

Text is the source of Python's standard library, so losses on text belong to one version of Python.
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
