"""The keys of checkpoints: which run, after how many calls, and what is kept there."""

import re

from grasp_tune.core.errors import InputError

_TEXT = re.compile(r"x0|probe-(moments|part\d+)|run\d+-\d+(-state|-average[-+.e\d]+)?")


class Key(str):
    """One checkpoint: made by the functions below, or by `parse`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Return the key of that text; InputError where it is none."""
        if _TEXT.fullmatch(text) is None:
            raise InputError(f"{text[:80]!r} is no key of a checkpoint")
        return cls(text)

    @property
    def run(self) -> int:
        """The run that it is of; 0 where it is of none."""
        return int(self.split("-")[0][3:]) if self.startswith("run") else 0

    @property
    def call(self) -> int:
        """The oracle calls of its run; 0 where it is of none."""
        return int(self.split("-")[1]) if self.startswith("run") else 0

    @property
    def what(self) -> str:
        """`state`, all that a run needs to go on, `iterate` or `average`; empty without a run."""
        usual = "iterate" if self.startswith("run") else ""
        return next((word for word in ("state", "average") if f"-{word}" in self), usual)


START = Key("x0")  # the candidate that costs nothing
MOMENTS = Key("probe-moments")  # the largest gradient of each coordinate in the probe


def iterate_key(run: int, call: int) -> Key:
    return Key(f"run{run:03d}-{call:09d}")


def average_key(run: int, call: int, gamma: float) -> Key:
    return Key(f"{iterate_key(run, call)}-average{gamma:g}")


def state_key(run: int, call: int) -> Key:
    return Key(f"{iterate_key(run, call)}-state")


def part_key(part: int) -> Key:
    return Key(f"probe-part{part:03d}")
