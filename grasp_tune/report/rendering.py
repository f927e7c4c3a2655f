"""Pages from templates: single HTML files that open offline and fetch nothing.

Whatever is put in as text is escaped. The page's policy allows our own scripts, by their digests,
and no others; so text that got through as markup could still not run.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grasp_tune.report.formatting import duration, number, percent, plural
from grasp_tune.runtime.files import replace_atomically


def render(
    template: str, title: str, figures: Mapping[str, Any] | None = None, **values: Any
) -> str:
    """Return the page as HTML.

    template: a file of the folder `templates` that extends `page.html`.
    figures: plotly figures by the names by which the template places them.
    values: whatever else the template shows.
    """
    library = plotly_library()
    live = {} if library is None else dict(figures or {})
    draw = (files("grasp_tune.report") / "templates" / "draw.js").read_text("utf-8")
    scripts = [library, draw] if live and library else []
    # Of the text as a browser hands it to the check: line ends are single line feeds by then.
    sums = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            figures={name: _inert(figure) for name, figure in live.items()},
            scripts=[Markup(text) for text in scripts],
            digests=Markup(" ".join(f"'sha256-{item}'" for item in sums) or "'none'"),
            **{"refresh": None, **values},
        )
    )


def write_page(path: Path, text: str) -> Path:
    """Replace the file with the page, whole; return its path."""
    replace_atomically(path, lambda file: file.write(text.encode("utf-8", "replace")))
    return path


@cache
def plotly_library() -> str | None:
    """plotly.js itself, None where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    # It must not end its own element, nor open a comment that swallows the rest.
    return str(get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("grasp_tune.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    for function in (number, percent, duration, plural):
        environment.filters[function.__name__] = function
    return environment


def _inert(figure: Any) -> Markup:
    """JSON in which no markup can be found."""
    text = str(figure.to_json())
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
