"""`grasp-tune init`: a first config, and the schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_tune.cli.options import print_json, say
from grasp_tune.config import starter
from grasp_tune.config.errors import ConfigError


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config to write.")] = Path(
        "experiment.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON schema of a config instead, for editors that complete and check "
            "YAML.",
        ),
    ] = False,
) -> None:
    """Write a commented config to start from.

    It runs as it is. Every choice is explained beside it; the values in comments are the defaults.

    Example: grasp-tune init mine.yaml
    """
    if schema:
        from grasp_tune.config.schema import json_schema

        print_json(json_schema())
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(starter(str(file)))
    except FileExistsError:
        raise ConfigError(
            str(file), "", "a file that exists", "a new name, or --force to replace it"
        ) from None
    except OSError as error:
        reason = error.strerror or "an error"
        raise ConfigError(str(file), "", reason, "a place that can be written") from None
    typer.echo(str(file))
    say(f"next: grasp-tune plan {file}")
