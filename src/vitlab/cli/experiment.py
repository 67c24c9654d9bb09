"""`vitlab experiment`: one of the paper's questions, answered with error bars."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitlab.cli.live import live_view
from vitlab.cli.options import Download, Json
from vitlab.cli.output import print_json, print_line, print_table
from vitlab.errors import ExperimentStopped
from vitlab.experiments.read import TABLE

if TYPE_CHECKING:
    from vitlab.experiments.findings import Findings
    from vitlab.jobs.run import Watcher


def experiment(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE.toml", help=f"One of {', '.join(TABLE)}, or yours.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the experiment.")],
    data: Annotated[
        str | None, typer.Option(metavar="NAME|FOLDER|CSV", help="What to train on, else cifar10.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How often each arm is trained.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of one training.")] = None,
    arms: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="These arms, and what they need.")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Try it out: tiny models, a few steps, the sample.")
    ] = False,
    download: Download = False,
    json: Json = False,
) -> None:
    """Train every arm of an experiment over seeds and write a report; run again to continue."""
    from vitlab.experiments.folder import exact_command
    from vitlab.experiments.run import experiment as run

    wanted = None if arms is None else [name.strip() for name in arms.split(",")]

    @contextmanager
    def watching(title: str) -> "Iterator[Watcher]":
        from vitlab.jobs.run import Watcher

        with live_view(sys.stderr if json else sys.stdout) as view:
            view.note(title)
            yield Watcher(
                begin=lambda plan, files: view.begin(plan),
                metric=view.metric,
                files=view.files,
                note=view.note,
            )

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
            watching=watching,
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
    from vitlab.report.html import duration, in_pflops

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
