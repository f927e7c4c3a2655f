"""Numbers in words that people read at a glance."""

import math
from collections.abc import Iterable

from grasp_tune.optimizers.registry import described

WORKERS = (1, 2, 4, 8, 16)  # for which a speed is told


def number(value: float | None, digits: int = 4) -> str:
    """A number with a few digits, all before the point; a dash where it is none or not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e9 else f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """A time, to about two digits."""
    if seconds < 1:
        return "< 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def size(count: int) -> str:
    power = min(4, max(0, count.bit_length() - 1) // 10)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{count / 1024**power:.{1 if power else 0}f} {unit}"


def plural(count: int, word: str, ending: str = "s") -> str:
    """The count with its noun: `1 run`, `1,234 runs`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{ending}"


def quantities(bases: Iterable[str]) -> str:
    """What the numbers of these base optimizers are called."""
    return " or ".join(sorted({described(base).quantity for base in bases})) or "step size"
