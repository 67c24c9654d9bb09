"""`vitlab info`: the model card of a bundle, a run, a weight file or an exported file."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitlab.cli.options import Changes, Json, Preparation, loading, states_preprocessing
from vitlab.cli.output import EscapingConsole, print_json, print_line, print_text, visible_cell

if TYPE_CHECKING:
    from rich.table import Table

    from vitlab.jobs.card import Card


@states_preprocessing
def info(
    path: Annotated[
        str,
        typer.Argument(metavar="BUNDLE|RUN|WEIGHTS|NAME", help="Folder, file or weights by name."),
    ],
    file: Annotated[
        Path | None, typer.Argument(help="File that --markdown writes; default: standard output.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write the card as Markdown for a hub.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the files of a bundle with their digests first."),
    ] = False,
    changes: Changes = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Show the model card: labels, preprocessing, accuracy, data, licence, cost and files."""
    if file is not None and not markdown:
        raise typer.BadParameter(f"{file} is written with --markdown only")
    if json and markdown:
        raise typer.BadParameter("--json and --markdown are two forms of the card; choose one")
    from vitlab.jobs.card import markdown as as_markdown
    from vitlab.jobs.card import read_card, write_markdown

    if verify:
        from vitlab.jobs.bundle import verify as check

        files = check(path)
        if not (json or markdown):
            print_line(f"verified: {', '.join(files)}")
    card = read_card(path, **loading(changes, preprocessing=preprocessing))
    if json:
        print_json(card.to_dict())
    elif not markdown:
        _show(card)
    elif file is None:
        print_text(as_markdown(card), end="")
    else:
        write_markdown(card, file)
        print_line(f"model card: {file}")


def _show(card: "Card") -> None:
    """Sections with aligned rows; a terminal wraps the values, a pipe gets them whole."""
    from vitlab.jobs.card import sections

    console = EscapingConsole()
    shown = sections(card)
    width = max(len(name) for section in shown for name, _ in section.rows)
    console.print(visible_cell(card.title, "bold"), soft_wrap=True)
    for section in shown:
        print_line()
        console.print(visible_cell(section.title, "bold cyan"), soft_wrap=True)
        if console.is_terminal:
            console.print(_grid(section.rows, width))
            continue
        for name, value in section.rows:
            print_line(f"  {name:<{width}}  {value}")


def _grid(rows: Iterable[tuple[str, str]], width: int) -> "Table":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=width + 2)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(visible_cell(f"  {name}", "dim"), visible_cell(value))
    return grid
