"""Commands on frozen features: `vitlab features` and `vitlab fewshot`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_model
from vitlab.cli.options import (
    Download,
    DrawSeed,
    ImagesAtOnce,
    ImageSize,
    InParts,
    Json,
    Layer,
    Merge,
    Model,
    Part,
    Preparation,
    Ray,
    Workers,
    split_names,
    states_preprocessing,
)
from vitlab.cli.output import (
    human,
    print_json,
    print_left_out,
    print_line,
    print_pairs,
    print_table,
)
from vitlab.cli.progress import image_progress, job_progress
from vitlab.config import to_dict
from vitlab.errors import ConfigError
from vitlab.machine.world import check_alone

if TYPE_CHECKING:
    from vitlab.evaluation.fewshot import Score
    from vitlab.jobs.features import Extracted
    from vitlab.jobs.fewshot import FewShot


@states_preprocessing
def features(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A run, a bundle, a weight file or a name.", autocompletion=complete_model
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|SHARDS|DATA-NAME...",
            help="Images of any of these; sample/test/17 is one image of a dataset.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.npz|.parquet", help="File to write.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="pooled (input of the head), embedding (behind its projection), cls (class token) "
            "or patches (a grid)."
        ),
    ] = "pooled",
    layer: Layer = None,
    image_size: ImageSize = None,
    split: Annotated[
        str | None, typer.Option(help="train, test or all (the default) of a dataset by name.")
    ] = None,
    batch_size: ImagesAtOnce = 64,
    workers: Workers = 0,
    download: Download = False,
    parts: InParts = False,
    part: Part = None,
    ray: Ray = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the parts of --output first.")
    ] = False,
    merge: Merge = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Write the features of images to a file; unreadable images are listed and skipped."""
    if merge is not None:
        _merge(merge, (model, images, output), json)
        return
    if model is None or not images or output is None:
        raise typer.BadParameter("Missing argument: MODEL, images and --output, or --merge OUT")
    options: dict[str, Any] = {
        "kind": kind,
        "layer": layer,
        "image_size": image_size,
        "split": split,
        "batch_size": batch_size,
        "workers": workers,
        "preprocessing": preprocessing,
    }
    if parts or part is not None or ray is not None:
        _in_parts(model, images, output, json, part=part, ray=ray, overwrite=overwrite, **options)
        return
    check_alone("features", "valid for several: --parts")
    from vitlab.jobs.features import extract

    with job_progress() as watch:
        found = extract(model, images, output=output, download=download, watch=watch, **options)
    _print(found, json)


def _in_parts(model: str, images: list[str], output: Path, json: bool, **options: Any) -> None:
    """Compute the parts of this process."""
    from vitlab.jobs.parts.features import extract_parts

    broken: dict[str, str] = {}

    def keep(path: str | None, reason: str) -> None:
        broken[str(path)] = reason

    with image_progress() as watch:
        found = extract_parts(model, images, output=output, each=keep, watch=watch, **options)
    if json:
        print_json({"output": str(output), **to_dict(found)})
        return
    before = f" ({found.done_before:,} of them before)" if found.done_before else ""
    print_pairs([("images", f"{found.images:,}{before}"), ("parts", f"{output}.parts")])
    print_left_out(broken)


def _merge(output: Path, others: tuple[object, ...], json: bool) -> None:
    """Join the parts of an output."""
    from vitlab.jobs.parts.features import merge_features

    check_alone("features --merge", "valid: one")
    if any(others):
        raise ConfigError("--merge OUT takes no model, images or --output")
    with job_progress() as watch:
        found = merge_features(output, watch)
    _print(found, json)


def _print(found: "Extracted", json: bool) -> None:
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found))
    print_left_out(found.broken)


def _facts(found: "Extracted") -> dict[str, Any]:
    return {
        "output": str(found.output),
        "images": found.images,
        "labelled": found.labelled,
        "broken": found.broken,
        **found.info.to_json(),
    }


def _lines(found: "Extracted") -> list[tuple[str, str]]:
    info = found.info
    layer = "the last layer" if info.layer is None else f"layer {info.layer}"
    size = " x ".join(map(str, info.shape))
    lines = [
        ("images", f"{found.images:,} ({found.labelled:,} with a label)"),
        ("features", f"{info.kind} of {layer}, {size} an image"),
        ("file", f"{found.output} ({human(found.output.stat().st_size)}B)"),
    ]
    if found.broken:
        lines.insert(1, ("not readable", f"{len(found.broken):,} (left out)"))
    return lines


# Few-shot evaluation: accuracy of frozen features with few training images of each class.


def parse_shots(text: str) -> tuple[int, ...]:
    """Numbers from `1,5,10`."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of numbers from 1, such as 1,5,10")
    return tuple(map(int, parts))


@states_preprocessing
def fewshot(
    model: Model,
    data: Annotated[str, typer.Option(help="A dataset's name, or a folder of images.")],
    shots: Annotated[
        str, typer.Option(metavar="N,N,...", help="Training images of each class.")
    ] = "1,5,10",
    draws: Annotated[int, typer.Option(min=1, help="Random draws of them.")] = 5,
    seed: DrawSeed = 0,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="least-squares, knn or logistic; default: all."),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="pooled (input of the head) or cls (class token).")
    ] = "pooled",
    layer: Layer = None,
    image_size: ImageSize = None,
    batch_size: ImagesAtOnce = 64,
    workers: Workers = 0,
    download: Download = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write accuracy against shots.")
    ] = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Fit small classifiers to frozen features of a few images and test them on the others."""
    from vitlab.jobs.fewshot import check_plot, write_plot
    from vitlab.jobs.fewshot import fewshot as run

    if plot is not None:
        check_plot(plot)
    with job_progress() as watch:
        found = run(
            model,
            data,
            shots=parse_shots(shots),
            draws=draws,
            seed=seed,
            methods=split_names(methods),
            kind=kind,
            layer=layer,
            image_size=image_size,
            batch_size=batch_size,
            workers=workers,
            download=download,
            preprocessing=preprocessing,
            watch=watch,
        )
    if plot is not None:
        write_plot(found, plot)
    if json:
        print_json(found.to_dict())
        return
    _print_scores(found)
    if plot is not None:
        print_line()
        print_line(f"plot: {plot}")


def _print_scores(found: "FewShot") -> None:
    print_line(
        f"{found.data}: {found.test_images:,} test images of {found.classes} classes, "
        f"mean of {found.draws} draw{'s' * (found.draws > 1)}"
        + (" with its 95% interval" if found.draws > 1 else "")
    )
    shots = sorted({score.shots for score in found.scores})
    methods = list(dict.fromkeys(score.method for score in found.scores))
    cells = {(score.method, score.shots): _cell(score) for score in found.scores}
    print_table(
        ("method", *(f"{count} shot{'s' * (count > 1)}" for count in shots)),
        ((method, *(cells[method, count] for count in shots)) for method in methods),
    )
    print_left_out(found.broken)


def _cell(score: "Score") -> str:
    if score.interval is None:
        return f"{score.mean:.1%}"
    low, high = score.interval
    return f"{score.mean:.1%} ({low:.1%} to {high:.1%})"
