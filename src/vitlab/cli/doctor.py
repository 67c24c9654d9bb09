"""`vitlab doctor`: facts of the environment, and differences between processes."""

from typing import Annotated

import typer

from vitlab.cli.completion import complete_data
from vitlab.cli.options import Download, Json
from vitlab.cli.output import print_json, print_line, print_pairs


def doctor(
    data: Annotated[
        str | None,
        typer.Option(
            help="Data to compare between machines: a dataset's name, a folder or a CSV.",
            autocompletion=complete_data,
        ),
    ] = None,
    download: Download = False,
    json: Json = False,
) -> None:
    """Show the environment; under torchrun, test the exchange between all processes."""
    from vitlab.jobs.doctor import doctor as examine

    found = examine(data, download=download)
    if json:
        print_json(found.to_dict())
    else:
        print_pairs((name, value) for name, value in found.facts[0].items())
        for facts in found.facts[1:]:
            print_line(f"process {facts['process']}: {facts['device']} on {facts['machine']}")
        if found.exchange_seconds is not None:
            print_line(f"exchange: 16.8 MB summed in {found.exchange_seconds * 1e3:.1f} ms")
        for problem in found.problems:
            print_line(f"problem: {problem}")
        if not found.problems:
            print_line("no problem found")
    if found.problems:
        raise typer.Exit(2)
