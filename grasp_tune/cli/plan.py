"""`grasp-tune plan`: what a run would do and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from grasp_tune.cli.options import (
    AllowOutside,
    Config,
    Format,
    Set,
    Shown,
    columns,
    lines,
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
        if experiment.budget == UNLIMITED:
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
    experiment, start, run = estimate.experiment, estimate.start, estimate.run
    problem: list[tuple[str, str]] = []
    if (built := estimate.built) is not None:
        words = (
            f"{built.data.name}, {len(built.data.x):,} training rows in minibatches of "
            f"{built.problem.batch_size}; {built.model.name} with {start.parameters:,} "
            f"parameters; loss {built.loss}"
        )
        problem = [("problem", words)]
    bases = ", ".join(run.bases) or "none"
    source = "from a few samples, not counted" if estimate.measured else "as given"
    if estimate.range is None:
        found = "nothing would be trained: the gradient at the start is zero"
    elif estimate.range[0] == estimate.range[1]:
        share = number(estimate.range[0])
        found = f"none to search: runs measure their distance, and take {share} of it"
    else:
        low, high = map(number, estimate.range)
        found = f"{estimate.quantity} {low} to {high}, {plural(len(run.values), 'value')}"
    head = lines(
        *problem,
        ("method", f"{experiment.method.name}, schedule {experiment.schedule}, optimizer {bases}"),
        (
            "start",
            f"loss {number(start.value)}, gradient norm {number(start.grad_norm)} ({source})",
        ),
        ("range", found),
    )
    phases = columns("phase ", "what ", "calls")
    for phase in estimate.phases:
        phases.add_row(phase.name, phase.what, f"{phase.calls:,}")
    phases.add_row("total", f"of {experiment.budget:,} allowed", f"{run.calls:,}", style="bold")
    tail = lines(("time", _time(estimate)), ("workers", _workers(estimate)))
    if estimate.disk is not None:
        tail.add_row("disk", f"at most {size(estimate.disk)} of checkpoints at a time")
    for note in estimate.notes:
        tail.add_row("note", note)
    title = Text(experiment.title or "An experiment", style="bold")
    return Group(title, Text(), head, Text(), phases, *_cells(estimate), Text(), tail)


def _time(estimate: CostEstimate) -> str:
    if estimate.seconds is None or estimate.costs is None:
        return "not measured: leave --grad-norm out to time a few steps"
    steps = f"{estimate.costs.speed.steps:,} timed oracle calls, thrown away and not counted"
    kind = estimate.experiment.backend.kind
    more = "" if kind == "local" else f", and what {kind} itself needs"
    return f"about {duration(estimate.seconds)} on this machine{more} (from {steps})"


def _workers(estimate: CostEstimate) -> str:
    from grasp_tune.report.cost_estimate import WORKERS

    run = estimate.run
    chain = f"{plural(run.depth, 'step')} of {run.calls:,} calls must follow each other"
    times = [(count, estimate.seconds_on(count)) for count in WORKERS]
    told = ", ".join(f"{count}: {duration(time)}" for count, time in times if time is not None)
    return f"{chain}; time on {told}" if told else chain


def _cells(estimate: CostEstimate) -> list[RenderableType]:
    """The grid of the schedule `paper`; the other one decides as it goes."""
    plan = estimate.run.plan
    if estimate.experiment.schedule != "paper" or plan is None or not plan.cells:
        return []
    table = columns("cell", plan.quantity, "calls")
    hidden = len(plan.cells) - 2 * _SHOWN
    for place, cell in enumerate(plan.cells):
        if hidden <= 0 or not _SHOWN <= place < _SHOWN + hidden:
            table.add_row(str(cell.index), f"{cell.value:.6g}", f"{cell.budget:,}")
        elif place == _SHOWN:
            table.add_row("...", f"{hidden} more", "")
    skipped = [Text(f"{plural(len(plan.skipped), 'cell')} skipped: no call for one iteration")]
    return [Text(), table, *(skipped if plan.skipped else [])]
