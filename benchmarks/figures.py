"""Small static figures as SVG text; the same numbers always give the same bytes."""

import html
import math
from collections.abc import Mapping, Sequence

INK, FAINT, ACCENT = "#222222", "#d0d0d0", "#c2410c"
POINT = "#2563eb"
STYLE = 'font-family="sans-serif" font-size="12"'


def strip_plot(
    title: str,
    axis: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    *,
    low: float,
    high: float,
    highlight: str,
) -> str:
    """Return a figure with a line of dots per row on a logarithmic axis; a tick marks the mean.

    Values outside [low, high] are drawn at its ends, infinite ones at the right end.
    """
    left, width, step, top = 190, 520, 20, 46
    height = top + step * len(rows) + 40

    def x(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return round(left + share * width, 1)

    parts = [_open(left + width + 30, height, title)]
    power = round(math.log10(low))
    while 10.0**power <= high * 1.001:
        at = x(10.0**power)
        parts.append(f'<path d="M{at} {top - 8}V{height - 34}" stroke="{FAINT}"/>')
        parts.append(_text(at, height - 20, f"{10.0**power:g}", "middle"))
        power += 1
    parts.append(_text(left + width / 2, height - 5, axis, "middle"))
    for at, (name, values) in enumerate(rows):
        y = top + step * at + 6
        colour = ACCENT if name == highlight else POINT
        parts.append(_text(left - 12, y + 4, name, "end", INK if name != highlight else ACCENT))
        parts += [
            f'<circle cx="{x(value)}" cy="{y}" r="3.5" fill="{colour}" fill-opacity="0.55"/>'
            for value in values
        ]
        mean = sum(min(value, high) for value in values) / max(1, len(values))
        parts.append(f'<path d="M{x(mean)} {y - 8}v16" stroke="{INK}" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>", ""])


def range_plot(title: str, axis: str, rows: Mapping[str, Sequence[float]]) -> str:
    """Return a figure with a bar per row from its smallest to its largest value, and its mean."""
    left, width, step, top = 330, 420, 24, 40
    height = top + step * len(rows) + 36
    every = [value for values in rows.values() for value in values] or [0.0]
    low, high = min(0.0, *every), max(0.0, *every)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return round(left + (value - low) / span * width, 1)

    parts = [_open(left + width + 40, height, title)]
    for value in sorted({low, 0.0, high}):
        parts.append(f'<path d="M{x(value)} {top - 6}V{height - 30}" stroke="{FAINT}"/>')
        parts.append(_text(x(value), height - 16, f"{value:.2f}", "middle"))
    parts.append(_text(left + width / 2, height - 2, axis, "middle"))
    for at, (name, values) in enumerate(rows.items()):
        y = top + step * at + 6
        colour = ACCENT if "promote" in name else POINT
        parts.append(_text(left - 12, y + 4, name, "end"))
        if values:
            first, last = x(min(values)), x(max(values))
            mean = x(sum(values) / len(values))
            size = round(max(2.0, last - first), 1)
            parts.append(
                f'<rect x="{first}" y="{y - 5}" width="{size}" height="10" fill="{colour}" '
                'fill-opacity="0.6"/>'
            )
            parts.append(f'<path d="M{mean} {y - 8}v16" stroke="{INK}" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>", ""])


def growth_plot(
    title: str, axes: tuple[str, str], lines: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Return a figure with a line per name through its (x, y), with powers of two on both axes."""
    left, top, unit, tall = 60, 40, 60, 40
    most_x = max(x for points in lines.values() for x, _ in points)
    most_y = max(y for points in lines.values() for _, y in points)
    columns, rows = round(math.log2(most_x)), math.ceil(math.log2(most_y))
    right, bottom = left + unit * columns, top + tall * rows
    parts = [_open(right + 170, bottom + 50, title)]
    for at in range(columns + 1):
        parts.append(f'<path d="M{left + unit * at} {top}V{bottom}" stroke="{FAINT}"/>')
        parts.append(_text(left + unit * at, bottom + 18, f"{2**at}", "middle"))
    for at in range(rows + 1):
        parts.append(f'<path d="M{left} {bottom - tall * at}H{right}" stroke="{FAINT}"/>')
        parts.append(_text(left - 8, bottom - tall * at + 4, f"{2**at}", "end"))
    parts.append(_text((left + right) / 2, bottom + 38, axes[0], "middle"))
    parts.append(_text(left, top - 6, axes[1], "start"))
    last: list[float] = []  # keeps labels apart
    for name, points in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        places = [
            (left + unit * math.log2(x), round(bottom - tall * math.log2(max(1.0, y)), 1))
            for x, y in points
        ]
        way = "L".join(f"{x:g} {y:g}" for x, y in places)
        colour = ACCENT if name.startswith("default") else POINT
        parts.append(f'<path d="M{way}" stroke="{colour}" stroke-width="2" fill="none"/>')
        last.append(max(places[-1][1] + 4, last[-1] + 14 if last else 0.0))
        parts.append(_text(right + 8, last[-1], name, "start", colour))
    return "\n".join([*parts, "</svg>", ""])


def _open(width: float, height: float, title: str) -> str:
    name = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" {STYLE}>\n<title>{name}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="12" y="20" font-size="14" font-weight="bold" fill="{INK}">{name}</text>'
    )


def _text(x: float, y: float, words: str, anchor: str, colour: str = INK) -> str:
    safe = html.escape(words)
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{safe}</text>'
