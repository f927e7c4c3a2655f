"""Drawings as inline SVG: axes with logarithmic or plain scales, marks, lines, bars.

Colours are classes, so that the page's light and dark style decides them. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 52


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers to places along an axis."""

    low: float
    high: float
    start: float  # the place of `low`
    stop: float
    log: bool = True

    def __call__(self, value: float) -> float:
        """The place of a value; values outside are put at the nearer end."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round values for the axis, at most about eight."""
        if not self.log:
            step = _round_step((self.high - self.low) / 6)
            first = math.ceil(self.low / step)
            return [at * step for at in range(first, math.floor(self.high / step) + 1)]
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first >= 2:
            stride = max(1, math.ceil((last - first) / 8))
            return [10.0**power for power in range(first, last + 1, stride)]
        found = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 3, 5, 7)]
        return [value for value in found if self.low <= value <= self.high]


def span(values: Sequence[float], *, log: bool = True) -> tuple[float, float]:
    """The ends of an axis that holds the values with a little room."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        room = max((high / low) ** 0.05, 1.05)
        return low / room, high * room
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


@dataclass
class Drawing:
    """One chart under construction; `text()` gives the SVG."""

    label: str  # what it shows, for those who cannot see it
    width: int = WIDTH
    height: int = HEIGHT
    kind: str = ""  # a class of its own for the page's style
    parts: list[str] = field(default_factory=list)

    def axes(self, x: Scale, y: Scale, x_title: str, y_title: str) -> None:
        """Grid lines, tick labels and titles."""
        for tick in y.ticks():
            at = y(tick)
            self._line(x.start, at, x.stop, at, "grid")
            self._text(x.start - 8, at + 4, _tick(tick), "tick end")
        for tick in x.ticks():
            at = x(tick)
            self._line(at, y.start, at, y.stop, "grid")
            self._text(at, y.start + 18, _tick(tick), "tick middle")
        self._text((x.start + x.stop) / 2, self.height - 8, x_title, "axis middle")
        middle = (y.start + y.stop) / 2
        self.parts.append(
            f'<text class="axis middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
            f"{escape(y_title)}</text>"
        )

    def dot(self, x: float, y: float, radius: float, kind: str, tip: str) -> None:
        """A circle that tells more when pointed at."""
        self.parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def cross(self, x: float, y: float, kind: str, tip: str) -> None:
        """A small x, for what did not end well."""
        self.parts.append(
            f'<path class="{kind}" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8">'
            f"<title>{escape(tip)}</title></path>"
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str, tip: str = "") -> None:
        """A line through the points."""
        if len(points) < 2:
            return
        text = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(f'<path class="{kind}" d="M{text}">{title}</path>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, tip: str) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{height:.1f}"><title>{escape(tip)}</title></rect>'
        )

    def write(self, x: float, y: float, text: str, kind: str = "tick") -> None:
        """A word at a place."""
        self._text(x, y, text, kind)

    def text(self) -> str:
        """The SVG."""
        inside = "".join(self.parts)
        kind = f"chart {self.kind}".strip()
        # A bar without words may be stretched to any shape.
        fill = ' preserveAspectRatio="none"' if self.kind == "bar-only" else ""
        return (
            f'<svg class="{kind}" viewBox="0 0 {self.width} {self.height}"{fill} role="img" '
            f'aria-label="{escape(self.label)}">{inside}</svg>'
        )

    def _line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def _text(self, x: float, y: float, text: str, kind: str) -> None:
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')


def _tick(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:,.6g}"


def _round_step(step: float) -> float:
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)
