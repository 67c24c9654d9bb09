"""`vitlab experiment`: a study of several arms, trained over seeds, with intervals."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitlab.cli.options import Download, Json, split_names
from vitlab.cli.output import print_json, print_line, print_table
from vitlab.cli.progress import run_progress
from vitlab.errors import ExperimentStopped
from vitlab.experiments.spec import NAMES

if TYPE_CHECKING:
    from vitlab.experiments.findings import Findings


def experiment(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE.toml", help=f"One of {', '.join(NAMES)}, or yours.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the experiment.")],
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME|FOLDER|CSV", help="Images to train on; default: cifar10."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each arm, with different seeds.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of one run.")] = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Only these arms, and the arms they start from."),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Quick trial: tiny models, a few steps, the sample.")
    ] = False,
    download: Download = False,
    json: Json = False,
) -> None:
    """Train every arm of an experiment over seeds and write a report; run again to continue."""
    from vitlab.experiments.folder import exact_command
    from vitlab.experiments.run import experiment as run

    wanted = split_names(arms)

    try:
        found = run(
            what,
            out=out,
            data=data,
            seeds=seeds,
            minutes=minutes,
            smoke=smoke,
            arms=wanted,
            download=download,
            watching=lambda title: run_progress(json=json, title=title),
        )
    except ExperimentStopped as stop:
        again = exact_command(
            what, out, data=data, seeds=seeds, minutes=minutes, smoke=smoke, arms=wanted
        )
        print_line(f"{stop}; continue: {again}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal) from None
    if json:
        print_json(found.to_dict())
    else:
        _print(found)
    for name, reason in found.failures.items():
        print_line(f"failed: {name}: {reason}", file=sys.stderr)
    if found.failures:
        raise typer.Exit(2)


def _print(found: "Findings") -> None:
    from vitlab.report.numbers import duration, in_pflops

    started = any(item.before for item in found.summaries.values())
    rows = [
        (
            found.experiment.arm(name).shown,
            f"{item.mean:.2%}",
            "" if item.deviation is None else f"± {item.deviation:.2%}",
            f"{len(item.values)}",
            in_pflops(1e15 * item.pflops) if item.pflops else "–",
            *([in_pflops(1e15 * item.before) if item.before else "–"] if started else []),
            duration(60 * item.minutes) if item.minutes else "–",
        )
        for name, item in found.summaries.items()
    ]
    start = ("of its start",) if started else ()
    print_table(("arm", "accuracy", "deviation", "seeds", "compute", *start, "time"), rows)
    print_line()
    for sentence in found.conclusion:
        print_line(sentence)
    print_line(f"report: {found.report}")
