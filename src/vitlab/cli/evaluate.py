"""`vitlab evaluate`: how good a model is, and where it fails."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.judged import headline, lines, print_details
from vitlab.cli.options import EngineOption, Json, MergeTokens
from vitlab.cli.output import EscapingConsole, print_json, print_left_out, print_line, print_pairs
from vitlab.io.files import check_parent

if TYPE_CHECKING:
    from vitlab.jobs.evaluate import Evaluated, Watch


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A run, a bundle, a weight or exported file, or a name.")
    ],
    data: Annotated[str, typer.Option(help="A dataset's name, a folder of images, or a CSV.")],
    split: Annotated[
        str,
        typer.Option(
            help="test, train, validation (what a run holds out from train), or all (of data that "
            "the model never saw)."
        ),
    ] = "test",
    flip: Annotated[
        bool,
        typer.Option(
            "--flip", help="Tell also what averaging over each image and its mirror image gives."
        ),
    ] = False,
    temperature: Annotated[
        bool,
        typer.Option("--temperature", help="Fit a temperature on images held out from train."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    merge_tokens: MergeTokens = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that decode files; 0: none but this one.")
    ] = 0,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data if need be.")
    ] = False,
    engine: EngineOption = "auto",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with pictures.")
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate a model on labelled images, with confidence intervals."""
    from vitlab.jobs.evaluate import evaluate as run
    from vitlab.jobs.evaluate import report_of
    from vitlab.report.run.page import write_page

    if output is not None:
        check_parent(output)
    with _progress() as watch:
        found = run(
            model,
            data,
            split=split,
            flip=flip,
            temperature=temperature,
            batch_size=batch_size,
            merge_tokens=merge_tokens,
            workers=workers,
            download=download,
            engine=engine,
            watch=watch,
        )
    if output is not None:
        command = _command(found, data, temperature=temperature, engine=engine)
        write_page(output, report_of(found, command))
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found))
    print_line()
    print_details(found.evaluation)
    print_left_out(found.broken)
    if output is not None:
        print_line()
        print_line(f"report: {output}")


def _command(found: "Evaluated", data: str, *, temperature: bool, engine: str) -> str:
    """What gives the same numbers again."""
    asked = ["vitlab", "evaluate", found.model, "--data", data, "--split", found.split]
    flip, merged = found.flipped is not None, found.classifier.merge_tokens
    switches = [name for name, on in (("--flip", flip), ("--temperature", temperature)) if on]
    switches += [] if engine == "auto" else ["--engine", engine]
    return shlex.join([*asked, *switches, *(["--merge-tokens", str(merged)] if merged else [])])


@contextmanager
def _progress() -> "Iterator[Watch | None]":
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    console = EscapingConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _facts(found: "Evaluated") -> dict[str, Any]:
    return {
        "model": found.model,
        "data": found.source.name,
        "split": found.split,
        "counts": found.counts.to_dict(),
        "merge_tokens": found.classifier.merge_tokens,
        **found.evaluation.to_dict(),
        "flip": None if found.flipped is None else found.flipped.to_dict(),
        "broken": found.broken,
    }


def _where(found: "Evaluated") -> str:
    """Which images were judged; of a folder without splits only a part is, unless told."""
    name = found.source.name
    if found.split == "test" and found.source.divided:
        return f"test of {name}, a fifth of it; --split all takes all, if none was learnt from"
    return f"{found.split} of {name}"


def _each(found: "Evaluated") -> str:
    """Fewest and most images of a class, where they differ."""
    counts = found.counts
    return f"; {counts.per_class}" if counts.least != counts.most else ""


def _lines(found: "Evaluated") -> list[tuple[str, str]]:
    from vitlab.evaluation.calibration import NO_TEMPERATURE

    evaluation: Any = found.evaluation
    shown = [
        ("images", f"{evaluation.images:,} ({_where(found)}{_each(found)})"),
        *lines(evaluation),
    ]
    if found.temperature and evaluation.scaled is None:
        shown.append(("temperature", NO_TEMPERATURE))
    if found.classifier.merge_tokens:
        shown.append(("merged tokens", f"{found.classifier.merge_tokens} in each block"))
    if found.flipped is not None:
        shown.append(("with mirror images", headline(found.flipped)))
    shown += [("not evaluated", sentence) for sentence in found.absent]
    if found.broken:
        shown.append(("not readable", f"{len(found.broken):,} (not counted)"))
    return shown
