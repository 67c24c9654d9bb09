"""`vitlab evaluate`: metrics of a model on labelled images."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_data
from vitlab.cli.options import (
    ClassLabels,
    Download,
    Engine,
    ImagesAtOnce,
    ImageSize,
    Json,
    Language,
    MergeTokens,
    ModelOrExport,
    Preparation,
    Size,
    Workers,
    loading,
    size_text,
    states_preprocessing,
)
from vitlab.cli.output import (
    print_json,
    print_left_out,
    print_line,
    print_pairs,
    print_table,
)
from vitlab.cli.progress import image_progress
from vitlab.io.files import check_parent
from vitlab.machine.world import rank_and_size

if TYPE_CHECKING:
    from vitlab.jobs.evaluate import Evaluated
    from vitlab.objectives.objective import Metrics

SHOWN = 20
"""Rows of the table of classes; of more, the weakest are shown."""


@states_preprocessing
def evaluate(
    model: ModelOrExport,
    data: Annotated[
        str,
        typer.Option(
            help="A dataset's name, a folder, zip or tar file of images, or a CSV.",
            autocompletion=complete_data,
        ),
    ],
    split: Annotated[
        str,
        typer.Option(
            help="test, train, validation (held out from train by a run), or all (of data "
            "that was not trained on)."
        ),
    ] = "test",
    flip: Annotated[
        bool,
        typer.Option(
            "--flip", help="Also average the predictions of each image and its mirror image."
        ),
    ] = False,
    temperature: Annotated[
        bool,
        typer.Option("--temperature", help="Fit a temperature on images held out from train."),
    ] = False,
    batch_size: ImagesAtOnce = 64,
    merge_tokens: MergeTokens = 0,
    workers: Workers = 0,
    labels: ClassLabels = None,
    image_size: ImageSize = None,
    download: Download = False,
    engine: Engine = "auto",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a report with images.")
    ] = None,
    language: Language = "en",
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Evaluate a model on labelled images, with confidence intervals."""
    from vitlab.jobs.evaluate import evaluate as run
    from vitlab.jobs.evaluate import report_of
    from vitlab.report.language import check_language, speaking
    from vitlab.report.run.page import write_page

    check_language(language)
    stated = loading(labels=labels, image_size=image_size, preprocessing=preprocessing)
    if output is not None:
        check_parent(output)
    with image_progress() as watch:
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
            **stated,
        )
    if output is not None and rank_and_size()[0] == 0:
        command = _command(found, data, temperature=temperature, engine=engine, **stated)
        with speaking(language):
            write_page(output, report_of(found, command))
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found))
    print_line()
    _print_details(found.evaluation)
    print_left_out(found.broken)
    if output is not None:
        print_line()
        print_line(f"report: {output}")


def _command(
    found: "Evaluated",
    data: str,
    *,
    temperature: bool,
    engine: str,
    labels: str | None = None,
    image_size: Size | None = None,
    preprocessing: Preparation = None,
) -> str:
    """The command that gives the same numbers again."""
    from vitlab.weights.preparation import as_options

    words = ["vitlab", "evaluate", found.model, "--data", data, "--split", found.split]
    flip, merged = found.flipped is not None, found.classifier.merge_tokens
    switches = [name for name, on in (("--flip", flip), ("--temperature", temperature)) if on]
    switches += [] if engine == "auto" else ["--engine", engine]
    switches += [] if labels is None else ["--labels", labels]
    switches += [] if image_size is None else ["--image-size", size_text(image_size)]
    switches += [] if preprocessing is None else as_options(preprocessing)
    return shlex.join([*words, *switches, *(["--merge-tokens", str(merged)] if merged else [])])


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
    """Split that was evaluated; of a folder without splits, a fifth is the test split."""
    name = found.source.name
    if found.split == "test" and found.source.divided:
        return f"test of {name}, a fifth of it; --split all takes all, if none was trained on"
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
        *evaluation.lines,
    ]
    if found.temperature and evaluation.scaled is None:
        shown.append(("temperature", NO_TEMPERATURE))
    if found.classifier.merge_tokens:
        shown.append(("merged tokens", f"{found.classifier.merge_tokens} in each block"))
    if found.flipped is not None:
        shown.append(("with mirror images", found.flipped.headline))
    shown += [("not evaluated", sentence) for sentence in found.absent]
    if found.broken:
        shown.append(("not readable", f"{len(found.broken):,} (not counted)"))
    return shown


def _print_details(found: "Metrics") -> None:
    """Print the table of classes or labels, if there is one."""
    from vitlab.objectives.objective import objective_of

    table = found.table
    if table is None:
        return
    rows = table.rows
    if len(rows) > SHOWN:
        order = sorted(range(len(rows)), key=lambda row: table.strength[row])
        rows = tuple(rows[row] for row in order[:SHOWN])
    print_table(table.columns, rows)
    if len(rows) < len(table.rows):
        outputs = objective_of(found.task).outputs
        print_line(f"the {len(rows)} weakest of {len(table.rows):,} {outputs}; --json has all")
