"""Numbers in words that people read at a glance, and the templates that use them."""

import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from grasp_tune.optimizers.registry import described

WORKERS = (1, 2, 4, 8, 16)  # for which a speed is told


def number(value: float | None, digits: int = 4) -> str:
    """A number with a few digits, all before the point; a dash where it is none or not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e9 else f"{value:.{digits}g}"


def estimate(value: float, error: float | None) -> str:
    """A number with its standard error, both to the error's second digit: `0.136 ± 0.046`."""
    # Without any spread each minibatch was all rows, or each loss was exactly 0.
    if error is None or not math.isfinite(error + value) or error <= 1e-7 * abs(value):
        return number(value)
    digits = 4
    if value and error:
        digits = max(1, math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2)
        value, error = float(f"{value:.{digits}g}"), float(f"{error:.2g}")
    return f"{number(value, digits)} ± {number(error, 2)}"


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


def labelled(text: str) -> str:
    """Lines `label | text` with the texts below each other, broken where a terminal ends."""
    pairs = [line.partition(" | ")[::2] for line in text.split("\n") if line]
    margin = 2 + max(len(label) for label, _ in pairs)
    # A log is never cut, nor is a terminal of unknown width, which Python 3.10 gives as 0.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    how: Any = {"width": width or sys.maxsize, "subsequent_indent": " " * margin}
    how |= dict.fromkeys(("break_long_words", "break_on_hyphens"), False)  # paths stay whole
    lines = (textwrap.fill(x, initial_indent=label.ljust(margin), **how) for label, x in pairs)
    return "\n".join(lines) + "\n"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table, its head first; columns whose name ends in a space hold words, the rest numbers."""
    sides = ["<" if name.endswith(" ") else ">" for name in rows[0]]
    widths = [max(len(cell.strip()) for cell in column) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(line.format(*map(str.strip, row)).rstrip() for row in rows)


def sentence(text: str) -> Markup:
    """Text with a capital first letter for a page: what stands between backticks is code."""
    parts = str(escape(text[:1].upper() + text[1:])).split("`")
    return Markup("".join(f"<code>{x}</code>" if at % 2 else x for at, x in enumerate(parts)))


@cache
def templates() -> Environment:
    """The templates of pages for browsers, which escape what is put in, and for terminals."""
    made = Environment(
        loader=PackageLoader("grasp_tune.report"),
        autoescape=lambda name: not str(name).endswith(".txt"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, percent, duration, size, plural, labelled, columns, sentence)
    made.filters |= {function.__name__: function for function in filters}
    made.globals["WORKERS"] = WORKERS
    made.tests["finite"] = math.isfinite
    return made
