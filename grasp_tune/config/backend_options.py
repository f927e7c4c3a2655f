"""Where the work runs: this process, Ray or Optuna, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from grasp_tune.config.section import Count, FlagOrAuto, Real, Section, Text, Whole, name_tag

Workers = Annotated[Count, Field(le=10_000)]

_CPUS = "Processor cores that one task reserves; fractions let several tasks share a core."
_GPUS = "GPUs that one task reserves; 0.25 lets four tasks share one."


class Local(Section):
    """On this machine, without any server."""

    kind: Annotated[Literal["local"], Field(description="This backend.")] = "local"
    workers: Annotated[
        Workers, Field(description="Processes that train at the same time; 1: this process.")
    ] = 1
    threads: Annotated[
        Count | None,
        Field(le=1024, description="Threads that torch uses in each; empty: torch's own choice."),
    ] = None
    fused: Annotated[
        FlagOrAuto,
        Field(
            description="Train the cells of a small model together as one batched computation; "
            "`auto` decides by the model."
        ),
    ] = "auto"


class Ray(Section):
    """On a Ray cluster, or on a Ray started here."""

    kind: Annotated[Literal["ray"], Field(description="This backend.")] = "ray"
    address: Annotated[
        Text | None,
        Field(description="Cluster: `auto`, host:port or ray://host:port; empty: start it here."),
    ] = None
    workers: Annotated[
        Workers | None,
        Field(description="Tasks at the same time; empty: as many as the cluster holds."),
    ] = None
    cpus_per_task: Annotated[Real, Field(ge=0, le=1024, description=_CPUS)] = 1.0
    gpus_per_task: Annotated[Real, Field(ge=0, le=64, description=_GPUS)] = 0.0
    storage: Annotated[
        Text | None,
        Field(
            description="Folder or URI that every machine can reach, for checkpoints; needed with "
            "several machines; empty: the output folder."
        ),
    ] = None
    max_failures: Annotated[
        Whole, Field(ge=0, le=1000, description="How often a task is tried again after a fault.")
    ] = 2


class Optuna(Section):
    """As an Optuna study, which other processes and machines may join."""

    kind: Annotated[Literal["optuna"], Field(description="This backend.")] = "optuna"
    storage: Annotated[
        Text | None,
        Field(
            description="Database URL (sqlite:///study.db, postgresql://...) or the path of a "
            "journal file; empty: in memory."
        ),
    ] = None
    study: Annotated[
        Text, Field(max_length=512, description="Name of the study in the storage.")
    ] = "grasp_tune"
    workers: Annotated[
        Workers, Field(description="Processes on this machine; more than one needs `storage`.")
    ] = 1
    gpus_per_task: Annotated[Real, Field(ge=0, le=64, description=_GPUS)] = 0.0


BACKENDS: dict[str, type[Section]] = {"local": Local, "ray": Ray, "optuna": Optuna}


def _tag(value: object) -> str | None:
    return name_tag(value, key="kind", default="local")


def _kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


_AnyBackend = Annotated[
    Annotated[Local, Tag("local")] | Annotated[Ray, Tag("ray")] | Annotated[Optuna, Tag("optuna")],
    Discriminator(_tag),
]
BackendOptions = Annotated[
    _AnyBackend, BeforeValidator(_kind, json_schema_input_type=str | _AnyBackend)
]
