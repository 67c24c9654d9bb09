"""`vitlab benchmark`: speed of models and engines, with intervals."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Download,
    DrawSeed,
    Json,
    Preparation,
    Split,
    parse_numbers,
    parse_words,
    states_preprocessing,
)
from vitlab.cli.output import print_json, print_line, print_table
from vitlab.cli.progress import job_progress

if TYPE_CHECKING:
    from vitlab.jobs.benchmark.result import Benchmark


@states_preprocessing
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
            help="torch, compile (torch.compile), onnxruntime, openvino, aoti or auto; default: "
            "auto, with --merge-tokens torch. Exported files run on those that can, else on "
            "their usual one.",
        ),
    ] = None,
    batch: Annotated[
        Any, typer.Option(metavar="N,...", parser=parse_numbers, help="Images per call.")
    ] = "1,8",
    merge_tokens: Annotated[
        Any,
        typer.Option(
            metavar="R,...", parser=parse_numbers, help="Tokens merged in each block; 0: none."
        ),
    ] = "0",
    data: Annotated[
        str | None,
        typer.Option(help="Also measure accuracy on these images, for each R."),
    ] = None,
    split: Split = "test",
    download: Download = False,
    rounds: Annotated[
        int, typer.Option(min=1, help="Measurements of each model; 6 are needed for an interval.")
    ] = 12,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Length of one measurement, about.")
    ] = 0.5,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads per model; default: OMP_NUM_THREADS, or all cores."),
    ] = None,
    seed: DrawSeed = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write JSON, Markdown and a plot into this folder."),
    ] = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Benchmark models and engines in isolated, interleaved processes."""
    from vitlab.jobs.benchmark.job import benchmark as run
    from vitlab.jobs.benchmark.plan import Plan
    from vitlab.jobs.benchmark.plot import check_output, write_benchmark

    plan = Plan(
        models=tuple(models),
        engines=engines,
        batches=batch,
        merge_tokens=merge_tokens,
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        seed=seed,
        preprocessing=preprocessing,
    )
    if output is not None:
        check_output(output)
    with job_progress() as watch:
        found = run(plan, data=data, split=split, download=download, watch=watch)
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
    """The command line that was given."""
    return shlex.join(["vitlab", *sys.argv[1:]])
