"""`vitlab benchmark`: how fast models are, and how sure that is."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Json, parse_numbers, parse_words
from vitlab.cli.output import print_json, print_line, print_table
from vitlab.cli.progress import steps

if TYPE_CHECKING:
    from vitlab.jobs.benchmark.result import Benchmark


def benchmark(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Runs, bundles, weight files, exported files, or names (random weights); the "
            "first is the reference.",
        ),
    ],
    engines: Annotated[
        Any,
        typer.Option(
            metavar="NAME,...",
            parser=parse_words,
            help="What computes: torch, onnxruntime, openvino, aoti, or auto; else auto, with "
            "--merge-tokens torch. An exported file: those that can, else its usual one.",
        ),
    ] = None,
    batch: Annotated[
        Any, typer.Option(metavar="N,...", parser=parse_numbers, help="Images of a call.")
    ] = "1,8",
    against: Annotated[
        Any,
        typer.Option(
            metavar="NAME,...",
            parser=parse_words,
            help="Other libraries on the same weights: timm, transformers, vit-pytorch.",
        ),
    ] = "",
    merge_tokens: Annotated[
        Any,
        typer.Option(
            metavar="R,...", parser=parse_numbers, help="Tokens merged in each block; 0: none."
        ),
    ] = "0",
    data: Annotated[
        str | None,
        typer.Option(help="Tell also how good the models are on these images, for each R."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which of these images, as in evaluate.")] = "test",
    rounds: Annotated[
        int, typer.Option(min=1, help="Times that each is woken; 6 are needed for an interval.")
    ] = 12,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one waking, about.")] = 0.5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each; else OMP_NUM_THREADS, or all cores.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order in which they are woken.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write JSON, Markdown and a picture into this folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Benchmark models, engines and libraries in isolated, interleaved processes."""
    from vitlab.jobs.benchmark.job import benchmark as run
    from vitlab.jobs.benchmark.plan import Plan
    from vitlab.jobs.benchmark.plot import check_output, write_benchmark

    plan = Plan(
        models=tuple(models),
        engines=engines,
        batches=batch,
        against=against,
        merge_tokens=merge_tokens,
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        seed=seed,
    )
    if output is not None:
        check_output(output)
    with steps() as watch:
        found = run(plan, data=data, split=split, watch=watch)
    written = () if output is None else write_benchmark(found, output, _command())
    if json:
        print_json(found.to_dict())
        return
    _print(found)
    if written:
        print_line()
        print_line(f"written: {', '.join(map(str, written))}")


def _print(found: "Benchmark") -> None:
    from vitlab.jobs.benchmark.result import SPEEDS, models, notes, speeds

    for cell in found.cells:
        print_line(f"batch of {cell.batch}")
        print_table(SPEEDS, speeds(cell))
        for line in cell.disturbances:
            print_line(f"warning: {line}; measure again before quoting this", file=sys.stderr)
        print_line()
    print_table(*models(found))
    print_line()
    print_line(f"{notes(found)}")


def _command() -> str:
    """What gives the same figures again, on the same machine."""
    return shlex.join(["vitlab", *sys.argv[1:]])
