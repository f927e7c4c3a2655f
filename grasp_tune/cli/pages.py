"""What the commands print on a terminal; imported when there is something to print."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from grasp_tune.report.cost_estimate import CostEstimate
from grasp_tune.report.formatting import WORKERS, duration, number, percent, plural, size

if TYPE_CHECKING:
    from grasp_tune.config.run import Finished
    from grasp_tune.report.compare import Comparison

_SHOWN = 12  # cells listed at either end of a long grid


def show(page: Group) -> None:
    """Print on standard output; never cuts a line of a log, never colours a file."""
    terminal = sys.stdout.isatty()
    width = None if terminal else 160
    Console(width=width, highlight=False, soft_wrap=not terminal).print(page)


def _lines() -> Table:
    """A table whose rows are a word and what belongs to it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def _columns(*names: str) -> Table:
    """A table with these columns; those whose name ends in a space hold words, the rest numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        side: Any = "left" if name.endswith(" ") else "right"
        table.add_column(name.strip(), justify=side, no_wrap=True)
    return table


def run_page(finished: "Finished") -> Group:
    from grasp_tune.report.advice import effort, headline, next_steps, score_label, score_words

    result, metadata, table = finished.result, finished.metadata, _lines()
    table.add_row(score_label(result), score_words(result))
    quality: Any = metadata.quality
    for name, key in (("training", "train"), ("validation", "validation"), ("test", "test")):
        if (part := getattr(quality, key, None)) is not None:
            words = f"loss {number(part.loss)}"
            words += "" if part.accuracy is None else f", {percent(part.accuracy)} right"
            if part.metric is not None and quality.metric != "accuracy":
                words += f", {quality.metric} {number(part.metric)}"
            table.add_row(f"{part.rows:,} {name} rows", words)
    table.add_row("time", duration(metadata.seconds))
    for note in result.notes:
        table.add_row("note", note)
    for step in next_steps(result, metadata, shlex.quote(str(finished.folder))):
        table.add_row("next", step)
    table.add_row("report", str(finished.report))
    return Group(Text(headline(result, metadata)), Text(effort(result, metadata)), table)


def comparison_page(comparison: "Comparison", path: Path) -> Group:
    from grasp_tune.report.compare import headline, table_rows

    head, *rows = table_rows(comparison)
    table = _columns(*head)
    for row in rows:
        table.add_row(*row)
    return Group(Text(headline(comparison)), table, Text(f"page: {path}"))


def plan_page(estimate: CostEstimate) -> Group:
    experiment, start, run, head = estimate.experiment, estimate.start, estimate.run, _lines()
    if (built := estimate.built) is not None:
        rows, held = built.problem.rows, built.problem.validation_rows
        words = f"{built.data.name}, {rows:,} training rows in minibatches of "
        words += f"{built.problem.batch_size}{f', {held:,} validation rows' if held else ''}; "
        words += f"{built.model.name} with {start.parameters:,} "
        head.add_row("problem", f"{words}parameters; loss {built.loss}")
    words = f"{experiment.method.name}, schedule {experiment.schedule}, optimizer "
    head.add_row("method", words + (", ".join(run.bases) or "none"))
    source = "from a few samples, not counted" if estimate.measured else "as given"
    words = f"loss {number(start.value)}, gradient norm {number(start.grad_norm)} ({source})"
    head.add_row("start", words)
    low, high = map(number, estimate.range or (0.0, 0.0))
    words = f"{estimate.quantity} {low} to {high}, {plural(len(run.values), 'value')}"
    if estimate.range is None:
        words = "nothing would be trained: the gradient at the start is zero"
    elif estimate.range[0] == estimate.range[1]:
        words = f"none to search: runs measure their distance, and take {low} of it"
    head.add_row("range", words)
    phases = _columns("phase ", "what ", "calls")
    for phase in estimate.phases:
        phases.add_row(phase.name, phase.what, f"{phase.calls:,}")
    phases.add_row("total", f"of {experiment.budget:,} allowed", f"{run.calls:,}", style="bold")
    tail = _lines()
    words = "not measured: leave --grad-norm out to time a few steps"
    if estimate.seconds is not None and estimate.measured is not None:
        kind = experiment.backend.kind
        more = "" if kind == "local" else f", and what {kind} itself needs"
        words = f"about {duration(estimate.seconds)} on this machine{more} (from "
        words += f"{estimate.measured.steps:,} timed oracle calls, thrown away and not counted)"
    tail.add_row("time", words)
    words = f"{plural(run.depth, 'step')} of {run.calls:,} calls must follow each other"
    times = [(count, estimate.seconds_on(count)) for count in WORKERS]
    told = ", ".join(f"{count}: {duration(time)}" for count, time in times if time is not None)
    tail.add_row("workers", f"{words}; time on {told}" if told else words)
    if estimate.disk is not None:
        tail.add_row("disk", f"at most {size(estimate.disk)} of checkpoints at a time")
    for note in (*experiment.notes(), *(built.data.notes if built else ())):
        tail.add_row("note", note)
    title = Text(experiment.title or "An experiment", style="bold")
    return Group(title, Text(), head, Text(), phases, *_cells(estimate), Text(), tail)


def _cells(estimate: CostEstimate) -> list[RenderableType]:
    """The grid of the schedule `paper`; the other one decides as it goes."""
    plan = estimate.run.plan
    if estimate.experiment.schedule != "paper" or plan is None or not plan.cells:
        return []
    table = _columns("cell", plan.quantity, "calls")
    hidden = len(plan.cells) - 2 * _SHOWN
    for place, cell in enumerate(plan.cells):
        if hidden <= 0 or not _SHOWN <= place < _SHOWN + hidden:
            table.add_row(str(cell.index), f"{cell.value:.6g}", f"{cell.budget:,}")
        elif place == _SHOWN:
            table.add_row("...", f"{hidden} more", "")
    skipped = [Text(f"{plural(len(plan.skipped), 'cell')} skipped: no call for one iteration")]
    return [Text(), table, *(skipped if plan.skipped else [])]
