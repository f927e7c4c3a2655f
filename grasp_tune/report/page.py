"""Pages: the report of a run as one HTML file that opens offline and fetches nothing.

Text is escaped. The page's policy allows our own scripts, by their digests, and no others.
"""

import base64
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.run_folder import REPORT, saved_config
from grasp_tune.config.yaml_text import yaml_text
from grasp_tune.report import advice, figures, formatting, summary
from grasp_tune.report.evaluation import RunMetadata, read_metadata
from grasp_tune.runtime.callbacks import Callback
from grasp_tune.runtime.files import replace_atomically
from grasp_tune.runtime.lock import is_held
from grasp_tune.runtime.result import Result, error_bar
from grasp_tune.runtime.sweep_folder import load_search

REFRESH = 10  # seconds after which the page of a run under way loads itself again
_CURVES = 40  # curves in the figure, the best ones


def render(template: str, drawn: Mapping[str, Callable[[], Any]], **values: Any) -> str:
    """Return the page as HTML.

    template: a file of the folder `templates` that extends `page.html`.
    drawn: what draws the plotly figures, by name; without plotly none is drawn.
    values: the `title`, and whatever else the template shows.
    """
    library = plotly_library() if drawn else None
    ours = (files("grasp_tune.report") / "templates" / "draw.js").read_text("utf-8")
    scripts = [] if library is None else [library, ours]
    # Of the text as a browser hands it to the check: line ends are single line feeds by then.
    sums = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    inert = partial(htmlsafe_json_dumps, dumps=lambda figure: str(figure.to_json()))
    values = {
        "refresh": None,
        "figures": {name: inert(draw()) for name, draw in drawn.items() if scripts},
        "scripts": [Markup(text) for text in scripts],
        "digests": Markup(" ".join(f"'sha256-{item}'" for item in sums) or "'none'"),
        **values,
    }
    return formatting.templates().get_template(template).render(values)


def write_page(path: Path, text: str) -> Path:
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


def write_result_report(path: Path, result: Result) -> Path:
    """Write the report of a result that has no folder; a folder as `path` gets `report.html`."""
    path = path / REPORT if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_page(path, report_text(None, result, None, {}))


def write_folder_report(folder: Path) -> Path:
    """Write the report of a run's folder as it stands: ended, stopped, or under way."""
    refresh, metadata, config = None, None, saved_config(folder)
    if (folder / "result.json").exists():
        result, metadata = Result.load(folder), read_metadata(folder)
    elif (folder / "state.json").exists():
        metric = (config["problem"]["metric"] or "").rpartition(":")[2] or None
        result = replace(Result.of(load_search(folder / "state.json"), {}), measured=metric)
        refresh = REFRESH if is_held(folder) else None
    else:
        wanted = "one that has done its first task"
        raise ConfigError(str(folder), "", "a run without any outcome yet", wanted)
    return write_page(folder / REPORT, report_text(folder, result, metadata, config, refresh))


class LiveReport(Callback):
    """Writes the report of a run's folder again and again while it goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next = folder, time.monotonic() + REFRESH

    def on_progress(self, calls: int, best: float) -> None:
        """Write it, if it is time; it may cost a hundredth of the run."""
        begun = time.monotonic()
        if begun > self._next and (self._folder / "state.json").exists():
            write_folder_report(self._folder)
            self._next = time.monotonic() + max(REFRESH, 100 * (time.monotonic() - begun))


def report_text(
    folder: Path | None,
    result: Result,
    metadata: RunMetadata | None,
    config: Mapping[str, Any],
    refresh: int | None = None,
) -> str:
    """The report as HTML.

    folder: of the run, for the lines that load its model; None where there is none.
    config: as it is shown, secrets masked; `title` is the page's title.
    refresh: seconds after which the page loads itself again, for a run that is under way.
    """
    curves, scores = partial(figures.curve_figure, result, _CURVES), figures.score_figure
    chosen = result.choice.chosen
    return render(
        "report.html",
        {"curves": curves, "scores": partial(scores, result)} if result.runs else {},
        title=str(config.get("title") or (folder and folder.name) or "A run of grasp_tune"),
        refresh=refresh,
        result=result,
        metadata=metadata,
        advice=advice,
        summary=summary,
        error_bar=error_bar,
        quantity=formatting.quantities(run.base for run in result.runs),
        parts=figures.call_parts(result),
        # The chosen one, then by samples: few of them are no match for many.
        candidates=sorted(
            result.candidates,
            key=lambda row: (row is not chosen, -row.samples, math.isnan(row.score), row.score),
        ),
        folder=folder and str(folder),
        config=yaml_text(dict(config)) if config else "",
    )
