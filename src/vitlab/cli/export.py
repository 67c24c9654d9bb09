"""`vitlab export`: a model as a file for other runtimes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Changes,
    Download,
    Force,
    ImageSize,
    Json,
    MergeTokens,
    Model,
    Preparation,
    Split,
    loading,
    states_preprocessing,
)
from vitlab.cli.output import human, print_json, print_line, print_pairs, print_table
from vitlab.config import to_dict
from vitlab.errors import ConfigError, Disagrees

if TYPE_CHECKING:
    from vitlab.jobs.export import Accuracy, Exported


@states_preprocessing
def export(
    model: Model,
    output: Annotated[Path, typer.Option(metavar="FILE.onnx|.pt2", help="File to write.")],
    format: Annotated[
        str,
        typer.Option(
            metavar="onnx|torch-export|aoti",
            help="ONNX, torch's own, or compiled for this kind of machine (AOTInductor).",
        ),
    ] = "onnx",
    dynamic_batch: Annotated[
        bool,
        typer.Option(
            "--dynamic-batch/--one-image", help="Any number of images at once, or exactly one."
        ),
    ] = True,
    image_size: ImageSize = None,
    changes: Changes = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="int8|fp16",
            help="8-bit products in the encoder (ONNX), or weights stored in 16 bits.",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Images that set the activation ranges for int8; default: per batch.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Measure accuracy before and after on a dataset, a folder or a CSV."),
    ] = None,
    merge_tokens: MergeTokens = 0,
    split: Split = "test",
    download: Download = False,
    preprocess_inside: Annotated[
        bool,
        typer.Option("--preprocess-inside", help="Take 8-bit pixels, and normalise them inside."),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest difference of a logit that passes, as a part of the largest logit.",
        ),
    ] = None,
    force: Force = False,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Export a model and verify the file; a file that differs from the model is not kept.

    Exit code: 0 written, 1 the exported model gives other outputs, 2 a user error.
    """
    if data is not None and preprocess_inside:
        raise ConfigError(
            "--data measures files that take normalised images, so not with --preprocess-inside"
        )
    if data is not None and format == "torch-export":
        raise ConfigError("--data measures files that vitlab runs: --format onnx or aoti")
    from vitlab.jobs.export import accuracy_of, before, check_output
    from vitlab.jobs.export import export as run

    settings = loading(changes, image_size=image_size, preprocessing=preprocessing)
    first = None
    if data is not None:  # its errors come before anything is written
        check_output(output, format, force)
        first = before(model, data, split=split, download=download, **settings)
    try:
        found = run(
            model,
            format=format,
            output=output,
            dynamic_batch=dynamic_batch,
            preprocess_inside=preprocess_inside,
            quantize=quantize,
            calibrate=calibrate,
            merge_tokens=merge_tokens,
            tolerance=tolerance,
            force=force,
            **settings,
        )
    except Disagrees as error:
        print_line("error:", error, file=sys.stderr)
        raise typer.Exit(1) from None
    accuracy = None
    if data is not None and first is not None:
        accuracy = accuracy_of(first, output, data, split=split)
    if json:
        print_json(_facts(found) | {"accuracy": None if accuracy is None else to_dict(accuracy)})
        return
    print_pairs(_lines(found))
    if accuracy is not None:
        print_line()
        _print_accuracy(accuracy)


def _print_accuracy(accuracy: "Accuracy") -> None:
    low, high = accuracy.interval
    print_table(
        ("accuracy", "before", "after", "change (95 %)", "same class", "images"),
        [
            (
                accuracy.data,
                f"{accuracy.before:.2%}",
                f"{accuracy.after:.2%}",
                f"{accuracy.after - accuracy.before:+.2%} ({low:+.2%} to {high:+.2%})",
                f"{accuracy.agreement:.2%}",
                f"{accuracy.images:,}",
            )
        ],
    )


def _facts(found: "Exported") -> dict[str, Any]:
    return {
        "output": str(found.output),
        "format": found.format,
        "files": [str(file) for file in found.files],
        "bytes": found.bytes,
        "comparison": to_dict(found.comparison) | {"allowed": found.comparison.allowed},
        "facts": to_dict(found.described.facts),
        "fresh": found.fresh,
    }


def _lines(found: "Exported") -> list[tuple[str, str]]:
    from vitlab.models.config import pair

    compared, config = found.comparison, found.described.config
    facts = found.described.facts
    height, width = pair(config["model"]["image_size"])
    batch = "any number of images" if facts.batch is None else "one image"
    kind = "8-bit pixels" if facts.preprocess_inside else "normalised images"
    lines = [
        ("file", f"{' and '.join(map(str, found.files))} ({human(found.bytes)}B)"),
        ("input", f"images: {batch}, {config['model']['channels']} x {height} x {width}, {kind}"),
        ("output", f"logits of {len(config['labels'])} classes"),
        (
            "difference",
            f"{compared.largest:.2g} at most on {compared.images} images, with logits up to "
            f"{compared.scale:.3g} (allowed: {compared.allowed:.2g})",
        ),
    ]
    if facts.merge_tokens:
        lines.insert(3, ("merged tokens", f"{facts.merge_tokens} in each block"))
    if found.fresh:
        lines.append(("weights", "random: a model's name has no trained weights"))
        lines.append(("preprocessing", "mean and std 0.5, since random weights have none"))
    return lines
