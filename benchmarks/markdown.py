"""Markdown tables, and numbers for readers."""

import math
from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in body]


def number(value: float) -> str:
    """Return a value with four digits; an infinite one means that the run diverged."""
    return f"{value:.4g}" if math.isfinite(value) else "diverged"


def percent(value: float) -> str:
    """Return a percentage with one decimal."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.1f}" if value < 1e4 else f"{value:.1e}"


def accuracy(value: float) -> str:
    """Return a share in per cent, or nothing if there is none."""
    return f"{100 * value:.1f}" if math.isfinite(value) else ""
