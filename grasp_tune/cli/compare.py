"""`grasp-tune compare`: this method and others, with the same oracle calls."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from grasp_tune.cli.options import (
    AllowOutside,
    Config,
    Format,
    Quiet,
    Set,
    Shown,
    columns,
    load_config,
    print_json,
    printer,
    say,
)
from grasp_tune.cli.run import resumable


def compare(
    config: Config,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for the results; the same folder again goes on with it."
        ),
    ],
    changes: Set = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Which methods, such as grasp-promote,grasp-paper,adamw,dog; by default ours and "
            "every peer that is installed (pip install 'grasp_tune[bench]' brings most).",
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each method.")] = 3,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="What comes first: train_loss, test_loss, metric or seconds."
        ),
    ] = "train_loss",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove an earlier comparison from DIR first.")
    ] = False,
    quiet: Quiet = False,
    shown: Shown = Format.TABLE,
    allow_outside: AllowOutside = False,
) -> None:
    """Compare with other optimizers on the same problem and the same number of oracle calls.

    GRASP in both schedules, and peers such as DoG, Prodigy, D-Adaptation, COCOB, schedule-free,
    AdamW at its defaults, Optuna's TPE and Ray's ASHA. Searching counts: whoever tunes pays for it
    out of the same budget. Writes DIR/comparison.html. Runs in this process, whatever the config's
    backend.

    Example: grasp-tune compare configs/quickstart.yaml --out runs/compare --seeds 2
    """
    experiment = load_config(config, changes, out, allow_outside=allow_outside)
    from grasp_tune.report import compare as contest

    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    again = ["grasp-tune", "compare", str(config), "--out", str(out), "--seeds", str(seeds)]
    again += [word for change in changes or () for word in ("--set", change)]
    again += ["--methods", methods] if methods else []
    again += ["--sort", sort] if sort != "train_loss" else []
    with resumable(shlex.join(again)):
        comparison = contest.compare(
            experiment,
            out,
            methods=names,
            seeds=seeds,
            fresh=fresh,
            sort=sort,
            tell=(lambda line: None) if quiet else say,
        )
    path = contest.write_comparison(comparison)
    if shown is Format.JSON:
        print_json(comparison.to_dict())
        return
    table = columns(*contest.head(comparison))
    for item in comparison.methods:
        table.add_row(*contest.row(item, comparison.metric))
    console = printer()
    console.print(table)
    console.print(f"page: {path}")
