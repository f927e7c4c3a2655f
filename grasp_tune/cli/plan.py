"""`grasp-tune plan`: what a run would do and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from grasp_tune.cli.options import (
    AllowOutside,
    Config,
    Format,
    Set,
    Shown,
    load_config,
    print_json,
    printer,
)
from grasp_tune.config import ConfigError, load_experiment
from grasp_tune.config.schema import UNLIMITED
from grasp_tune.report.formatting import duration, number, plural, size

if TYPE_CHECKING:
    from grasp_tune.report.cost_estimate import CostEstimate

_SHOWN = 12  # cells listed at either end of a long grid


def plan(
    config: Config,
    changes: Set = None,
    grad_norm: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Norm of the gradient at the start point. When given, no data are read and "
            "nothing is timed.",
        ),
    ] = None,
    value: Annotated[
        float, typer.Option(help="Loss at the start point, for use with --grad-norm.")
    ] = 1.0,
    shown: Shown = Format.TABLE,
    allow_outside: AllowOutside = False,
) -> None:
    """Show what a run would do and cost. Trains nothing.

    Prints the range that would be searched, the runs and their shares of the budget, the disk
    space, and how long it would take on this machine. For that, a few steps are really taken and
    thrown away; they do not count as oracle calls.

    Example: grasp-tune plan configs/quickstart.yaml
    """
    if grad_norm is None:
        experiment = load_config(config, changes, None, allow_outside=allow_outside)
    else:
        experiment = load_experiment(config, overrides=changes or ())
    if grad_norm is not None and experiment.budget == UNLIMITED:
        if experiment.steps is None:
            wanted = "budget or steps; or no --grad-norm, so that the data are read"
            raise ConfigError("--grad-norm", "", "a config with epochs or minutes", wanted)
        experiment = experiment.model_copy(update={"budget": experiment.steps})
    from grasp_tune.report.cost_estimate import estimate_cost

    estimate = estimate_cost(experiment, grad_norm=grad_norm, value=value)
    if shown is Format.JSON:
        print_json(estimate.to_dict())
    else:
        printer().print(_page(estimate))


def _page(estimate: CostEstimate) -> Group:
    experiment = estimate.experiment
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim", no_wrap=True)
    head.add_column()
    if estimate.built is not None:
        head.add_row("problem", _problem(estimate))
    bases = ", ".join(estimate.run.bases) or "none"
    head.add_row(
        "method", f"{experiment.method.name}, schedule {experiment.schedule}, optimizer {bases}"
    )
    head.add_row("start", _start(estimate))
    if estimate.range is None:
        head.add_row("range", "nothing would be trained: the gradient at the start is zero")
    else:
        low, high = estimate.range
        runs = plural(len(estimate.run.values), "value")
        found = f"{estimate.quantity} {number(low)} to {number(high)}, {runs}"
        if low == high:
            found = f"none to search: runs measure their distance, and take {number(low)} of it"
        head.add_row("range", found)
    tail = Table.grid(padding=(0, 2))
    tail.add_column(style="dim", no_wrap=True)
    tail.add_column()
    if estimate.disk is not None:
        tail.add_row("disk", f"at most {size(estimate.disk)} of checkpoints at a time")
    tail.add_row("time", _time(estimate))
    tail.add_row("workers", _workers(estimate))
    for note in estimate.notes:
        tail.add_row("note", note)
    title = Text(experiment.title or "An experiment", style="bold")
    return Group(title, Text(), head, Text(), _phases(estimate), *_cells(estimate), Text(), tail)


def _problem(estimate: CostEstimate) -> str:
    built = estimate.built
    assert built is not None
    rows = len(built.data.x)
    return (
        f"{built.data.name}, {rows:,} training rows in minibatches of {built.problem.batch_size}; "
        f"{getattr(built.model, 'name', 'model')} with {estimate.start.parameters:,} parameters; "
        f"loss {built.loss}"
    )


def _start(estimate: CostEstimate) -> str:
    start = estimate.start
    source = "from a few samples, not counted" if estimate.measured else "as given"
    return f"loss {number(start.value)}, gradient norm {number(start.grad_norm)} ({source})"


def _time(estimate: CostEstimate) -> str:
    if estimate.seconds is None or estimate.speed is None:
        return "not measured: leave --grad-norm out to time a few steps"
    steps = f"{estimate.speed.steps:,} timed oracle calls, thrown away and not counted"
    kind = estimate.experiment.backend.kind
    more = "" if kind == "local" else f", and what {kind} itself needs"
    return f"about {duration(estimate.seconds)} on this machine{more} (from {steps})"


def _workers(estimate: CostEstimate) -> str:
    from grasp_tune.report.cost_estimate import WORKERS

    chain = f"{estimate.depth:,} of {estimate.run.calls:,} calls must follow each other"
    times = [(count, estimate.seconds_on(count)) for count in WORKERS]
    told = ", ".join(f"{count}: {duration(time)}" for count, time in times if time is not None)
    return f"{chain}; time on {told}" if told else chain


def _phases(estimate: CostEstimate) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("phase", no_wrap=True)
    table.add_column("what")
    table.add_column("calls", justify="right")
    for phase in estimate.phases:
        table.add_row(phase.name, phase.what, f"{phase.calls:,}")
    budget = estimate.experiment.budget
    table.add_row("total", f"of {budget:,} allowed", f"{estimate.run.calls:,}", style="bold")
    return table


def _cells(estimate: CostEstimate) -> list[Table | Text]:
    """The grid of the schedule `paper`; the other one decides as it goes."""
    plan = estimate.run.plan
    if estimate.experiment.schedule != "paper" or plan is None or not plan.cells:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("cell", plan.quantity, "calls"):
        table.add_column(name, justify="right")
    cells = plan.cells
    hidden = len(cells) - 2 * _SHOWN
    first, last = (cells, ()) if hidden <= 0 else (cells[:_SHOWN], cells[-_SHOWN:])
    for cell in first:
        table.add_row(str(cell.index), f"{cell.value:.6g}", f"{cell.budget:,}")
    if hidden > 0:
        table.add_row("...", f"{hidden} more", "")
    for cell in last:
        table.add_row(str(cell.index), f"{cell.value:.6g}", f"{cell.budget:,}")
    skipped = [Text(f"{plural(len(plan.skipped), 'cell')} skipped: no call for one iteration")]
    return [Text(), table, *(skipped if plan.skipped else [])]
