"""Where the work runs: this process, Ray or Optuna, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from grasp_tune.config.section import KIND, Count, FlagOrAuto, Real, Section, Text, Whole, expected

Workers = Annotated[Count, Field(le=10_000)]
Gpus = Annotated[Real, Field(ge=0, le=64)]


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise expected("text on one line without control characters")
    return value


class BackendSection(Section):
    """Where the work runs."""

    kind: str
    """Which backend this is."""
    workers: Workers | None = None
    """Tasks at the same time."""


class Local(BackendSection):
    """On this machine, without any server."""

    kind: Annotated[Literal["local"], KIND] = "local"
    workers: Workers = 1
    """Processes that train at the same time; 1: this process."""
    threads: Annotated[Count, Field(le=1024)] | None = None
    """Threads that torch uses in each; empty: torch's own choice."""
    fused: FlagOrAuto = "auto"
    """Train the cells of a small model together as one batched computation; `auto` decides by the
    model."""


class Ray(BackendSection):
    """On a Ray cluster, or on a Ray started here."""

    kind: Annotated[Literal["ray"], KIND] = "ray"
    address: Text | None = None
    """Cluster: `auto`, host:port or ray://host:port; empty: start it here."""
    workers: Workers | None = None
    """Tasks at the same time; empty: as many as the cluster holds."""
    cpus_per_task: Annotated[Real, Field(ge=0, le=1024)] = 1.0
    """Processor cores that one task reserves; fractions let several tasks share a core."""
    gpus_per_task: Gpus = 0.0
    """GPUs that one task reserves; 0.25 lets four tasks share one."""
    storage: Text | None = None
    """Folder or URI that every machine can reach, for checkpoints; needed with several machines;
    empty: the output folder."""
    max_failures: Annotated[Whole, Field(ge=0, le=1000)] = 2
    """How often a task is tried again after a fault."""


class Optuna(BackendSection):
    """As an Optuna study, which other processes and machines may join."""

    kind: Annotated[Literal["optuna"], KIND] = "optuna"
    storage: Text | None = None
    """Database URL (sqlite:///study.db, postgresql://...) or the path of a journal file; empty: in
    memory."""
    study: Annotated[Text, Field(max_length=512), AfterValidator(_one_line)] = "grasp_tune"
    """Name of the study in the storage."""
    workers: Workers = 1
    """Processes on this machine; more than one needs `storage`."""
    gpus_per_task: Gpus = 0.0
    """GPUs that one task reserves; 0.25 lets four tasks share one."""


BACKENDS: dict[str, type[BackendSection]] = {"local": Local, "ray": Ray, "optuna": Optuna}
