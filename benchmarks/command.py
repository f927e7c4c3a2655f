"""The command line of `benchmarks/benchmark`."""

import argparse
import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.records import (
    RESULTS,
    ROOT,
    all_tables,
    cells_table,
    choices_table,
    contest_table,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 if a run failed, 2 for bad input."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    found = argparse.ArgumentParser(
        prog="benchmarks/benchmark",
        description="Measures the method against its paper and its peers; keeps raw results.",
    )
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    peers = commands.add_parser("peers", help="every method on every workload, same calls")
    _add_common(peers, seeds="10-14")
    peers.add_argument("--methods", default="*", help="patterns, comma-separated (default: all)")
    _add_group(peers)
    peers.set_defaults(run=_peers)
    ablation = commands.add_parser("ablation", help="the default schedule, one change at a time")
    _add_common(ablation, seeds="10-14")
    ablation.add_argument("--methods", default="*", help="variants, comma-separated (default: all)")
    _add_group(ablation)
    ablation.set_defaults(run=_ablation)
    tables = commands.add_parser("tables", help="the paper's three tables, both schedules")
    _add_common(tables, seeds="10")
    tables.add_argument("--methods", default="*", help="paper, promote or both (default: both)")
    tables.set_defaults(run=_tables)
    ensemble = commands.add_parser("ensemble", help="what the final choice costs, by simulation")
    _add_common(ensemble, seeds="10")
    ensemble.set_defaults(run=_ensemble)
    pack = commands.add_parser("pack", help="merge rows of finished runs into the compressed files")
    pack.add_argument("--results", type=Path, default=RESULTS, help="folder of raw results")
    pack.set_defaults(run=_pack)
    report = commands.add_parser("report", help="docs/results.md from the raw results")
    report.add_argument("--results", type=Path, default=RESULTS, help="folder of raw results")
    report.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder to write to")
    report.set_defaults(run=_report)
    return found


def _add_group(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--group", choices=("all", "classical", "modern"), default="all", help="of workloads (all)"
    )


def _add_common(command: argparse.ArgumentParser, seeds: str) -> None:
    command.add_argument("--only", default="*", help="patterns, comma-separated (default: all)")
    command.add_argument("--seeds", default=seeds, help=f"such as 10,12 or 10-14 ({seeds})")
    command.add_argument("--processes", type=int, default=2, help="of one thread each (2)")
    command.add_argument("--again", action="store_true", help="run what has a result already too")
    command.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ["GRASP_TUNE_DATA"]) if os.environ.get("GRASP_TUNE_DATA") else None,
        help="folder of the data sets (default: the environment variable GRASP_TUNE_DATA)",
    )
    command.add_argument("--results", type=Path, default=RESULTS, help="folder of raw results")


def picked(names: Sequence[str], patterns: str, what: str) -> list[str]:
    """Return the names that match, in their order; a pattern without a match is an error."""
    wanted = [pattern for pattern in patterns.split(",") if pattern]
    for pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"{what}: {pattern!r} matches nothing; there are {', '.join(names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, item) for item in wanted)]


def seed_list(text: str) -> list[int]:
    """Return the seeds in a text such as `10,12` or `10-14`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            found += range(int(first), int(last or first) + 1)
        except ValueError:
            raise ValueError(f"--seeds: got {part!r}, expected numbers such as 10-14") from None
    return found


def _peers(options: argparse.Namespace) -> int:
    from benchmarks.contest import RUNNABLE

    return _contest(options, RUNNABLE, "peers")


def _ablation(options: argparse.Namespace) -> int:
    from benchmarks.ablation import VARIANTS

    if not VARIANTS:
        raise ValueError("there is no variant in benchmarks/ablation.py")
    return _contest(options, tuple(VARIANTS), "ablation")


def _contest(options: argparse.Namespace, methods: Sequence[str], table: str) -> int:
    from benchmarks import contest
    from benchmarks.pool import run_jobs
    from benchmarks.workloads import WORKLOADS

    names = [item.name for item in WORKLOADS.values() if options.group in (item.group, "all")]
    wanted = picked(names, options.only, "--only")
    chosen, seeds = picked(methods, options.methods, "--methods"), seed_list(options.seeds)
    jobs = contest.plan_jobs(
        _with_data(wanted, options.data),
        chosen,
        seeds,
        options.data,
        contest_table(options.results, table),
        again=options.again,
    )
    return int(run_jobs(list(jobs), contest.run_job, options.processes) > 0)


def _tables(options: argparse.Namespace) -> int:
    from benchmarks import tables
    from benchmarks.pool import run_jobs

    names = picked(list(tables.TABLES), options.only, "--only")
    cells = tables.plan_cells(
        [name for name in names if _with_data([tables.TABLES[name].workload], options.data)],
        picked(tables.SCHEDULES, options.methods, "--methods"),
        seed_list(options.seeds),
        options.data,
        cells_table(options.results),
        again=options.again,
    )
    return int(run_jobs(list(cells), tables.run_cell, options.processes) > 0)


def _ensemble(options: argparse.Namespace) -> int:
    from benchmarks import choosing
    from benchmarks.pool import run_jobs

    table = choices_table(options.results)
    done = set() if options.again else set(table.rows())
    wanted = picked([f"{name}.{by}" for name, by, _ in choosing.POOLS], options.only, "--only")
    jobs = [
        (name, by, count, options.data, table, seed)
        for seed in seed_list(options.seeds)
        for name, by, count in choosing.POOLS
        if f"{name}.{by}" in wanted
        and _with_data([name], options.data)
        and (name, by, seed) not in done
    ]
    return int(run_jobs(jobs, choosing.run_pool, options.processes) > 0)


def _pack(options: argparse.Namespace) -> int:
    for table in all_tables(options.results):
        if table.fresh.exists() and table.fresh.stat().st_size:
            print(f"{table.packed}: {table.pack():,} rows")
    return 0


def _report(options: argparse.Namespace) -> int:
    from benchmarks.report import write_report

    print(write_report(options.results, options.docs))
    return 0


def _with_data(names: Sequence[str], data: Path | None) -> list[str]:
    """Return the workloads whose data exist, and print the others."""
    from benchmarks.workloads import WORKLOADS

    found = []
    for name in names:
        missing = WORKLOADS[name].missing(data)
        if missing:
            print(f"{name}: skipped, {missing} is not there", file=sys.stderr)
        else:
            found.append(name)
    return found
