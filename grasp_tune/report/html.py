"""One self-contained HTML file: it opens offline, runs only its own scripts and fetches nothing.

Whatever is put in as text is escaped. The page's policy allows the scripts written here, by their
digests, and no others; so text that got through as markup could still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from grasp_tune.report.page_style import STYLE
from grasp_tune.runtime.files import replace_atomically

# Draws the figures whose data are in the page; the drawings already there stay if it cannot.
_DRAW = """
(() => {
  const names = ["ink", "soft", "line", "card", "accent", "mark", "warm"];
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = {};
    for (const name of names) colour[name] = style.getPropertyValue("--" + name).trim();
    for (const box of document.querySelectorAll("[data-figure]")) {
      const source = document.getElementById("figure-" + box.dataset.figure);
      const figure = JSON.parse(source.textContent, (key, value) =>
        typeof value === "string" && value[0] === "@" ? colour[value.slice(1)] ?? value : value);
      const layout = Object.assign({}, figure.layout, {
        template: {}, autosize: true,
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 60, r: 16, t: 16, b: 48 },
        font: { color: colour.soft, family: "system-ui, sans-serif", size: 13 },
        hoverlabel: { bgcolor: colour.card, bordercolor: colour.line, font: { color: colour.ink } },
      });
      for (const key of Object.keys(layout)) {
        if (/^[xy]axis/.test(key)) {
          layout[key] = Object.assign({}, layout[key], {
            gridcolor: colour.line, zerolinecolor: colour.line, linecolor: colour.line,
            automargin: true,
          });
        }
      }
      box.classList.add("live");
      try {
        Plotly.react(box.querySelector(".plot"), figure.data, layout,
          { responsive: true, displaylogo: false, displayModeBar: false });
      } catch (error) {
        box.classList.remove("live");
        console.error(error);
      }
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and perhaps the same as a figure that answers to the pointer (needs plotly)."""

    name: str  # letters only
    drawing: str  # SVG, trusted
    caption: str
    figure: Mapping[str, Any] | None = None  # for plotly.js: data and layout


def document(title: str, body: Iterable[str], charts: Sequence[Chart] = ()) -> str:
    """The whole page; `body` holds pieces of markup made by the functions below."""
    scripts, data = _scripts(charts)
    digests = " ".join(f"'sha256-{_digest(text)}'" for text in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
            "\n".join(body),
            data,
            "".join(f"\n<script>{text}</script>" for text in scripts),
            "\n</body>\n</html>\n",
        )
    )


def write_page(path: Path, text: str) -> None:
    """Replace the file with the page, whole."""
    replace_atomically(path, lambda file: file.write(text.encode("utf-8", "replace")))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def title_line(text: str) -> str:
    """The page's one large heading."""
    return f"<h1>{escape(text)}</h1>"


def footer(text: str) -> str:
    """The small print at the end."""
    return f"<footer>{escape(text)}</footer>"


def heading(text: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(text)}</h2>"


def note(texts: Iterable[str], kind: str = "") -> str:
    """Sentences that must not be overlooked."""
    inside = "".join(paragraph(text) for text in texts)
    return f'<div class="note {kind}">{inside}</div>' if inside else ""


def numbers(pairs: Iterable[tuple[str, str]]) -> str:
    """Small cards, each a word and its number."""
    cards = "".join(
        f"<div><dt>{escape(word)}</dt><dd>{escape(value)}</dd></div>" for word, value in pairs
    )
    return f'<dl class="numbers">{cards}</dl>'


def figure(chart: Chart) -> str:
    """A chart with its caption; nothing where there is nothing to draw."""
    if not chart.drawing:
        return ""
    live = chart.figure is not None and plotly_library() is not None
    mark = f' data-figure="{chart.name}"' if live else ""
    plot = '<div class="plot"></div>' if live else ""
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>"
    return f'<figure{mark}>{plot}<div class="still">{chart.drawing}</div>{caption}</figure>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], chosen: Sequence[bool] = ()) -> str:
    """A table; columns after the first are numbers unless their heading ends in a space."""
    kinds = ["" if at == 0 or name.endswith(" ") else "right" for at, name in enumerate(head)]
    top = "".join(
        f'<th class="{kind}">{escape(name.strip())}</th>'
        for name, kind in zip(head, kinds, strict=True)
    )
    lines = []
    for at, row in enumerate(rows):
        mark = ' class="chosen"' if at < len(chosen) and chosen[at] else ""
        cells = "".join(
            f'<td class="{kind}">{escape(cell)}</td>' for cell, kind in zip(row, kinds, strict=True)
        )
        lines.append(f"<tr{mark}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def folded(summary: str, inside: str) -> str:
    """Something that is shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def code(text: str) -> str:
    """Text as it is written in a file."""
    return f"<pre><code>{escape(text)}</code></pre>"


def _scripts(charts: Sequence[Chart]) -> tuple[list[str], str]:
    """The scripts of a page and the data they draw; none where no figure is to be drawn."""
    live = {chart.name: chart.figure for chart in charts if chart.figure is not None}
    library = plotly_library() if live else None
    if library is None:
        return [], ""
    data = "".join(
        f'\n<script type="application/json" id="figure-{name}">{_inert(figure)}</script>'
        for name, figure in live.items()
    )
    return [library, _DRAW], data


@cache
def plotly_library() -> str | None:
    """plotly.js itself, None where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    # It must not end its own element, nor open a comment that swallows the rest.
    return str(get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _inert(figure: Mapping[str, Any]) -> str:
    """JSON in which no markup can be found."""
    text = json.dumps(figure, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    # Of the text as a browser hands it to the check: line ends are single line feeds by then.
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
