"""`vitlab explain`: what a model looks at, as a figure or as numbers, and how true that is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Changes, ClassLabels, ImageSize, Json, loading
from vitlab.cli.output import print_json, print_left_out, print_line, print_table, print_text
from vitlab.cli.progress import steps as showing
from vitlab.explain.limits import SHOWN, STEPS, TESTED

if TYPE_CHECKING:
    from vitlab.explain.explanation import Explanation
    from vitlab.jobs.explain import Explained
    from vitlab.jobs.faithfulness import Area, Faithfulness


def parse_token(text: str) -> tuple[int, int]:
    """Row and column from `3,5`."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not ROW,COLUMN of a patch from 0, such as 3,5")
    return int(parts[0]), int(parts[1])


def explain(
    model: Annotated[
        str, typer.Argument(help="A run, a bundle, a weight file or fetched weights.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|DATA-NAME...",
            help="What to explain; sample/test/17 is one image of a dataset.",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="relevance (the default), attention, rollout, gradcam or input-gradient; "
            "with --faithfulness all of them, or some: relevance,rollout."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="The class to explain; else the likeliest."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="A block, from 0 or -1: attention, rollout, gradcam.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="A head, from 0: attention. Else the mean of all.")
    ] = None,
    token: Annotated[
        Any,  # tuple[int, int] | None: Typer would want two arguments
        typer.Option(
            metavar="ROW,COL",
            parser=parse_token,
            help="The patch that looks: attention, rollout. Else what the head reads.",
        ),
    ] = None,
    each: Annotated[
        str | None,
        typer.Option(
            metavar="layer|head",
            help="A map for each block; of attention, also one for each head of each block.",
        ),
    ] = None,
    faithfulness: Annotated[
        bool,
        typer.Option(
            "--faithfulness", help="Test the maps instead: take patches away, give them back."
        ),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=2, help=f"With --faithfulness: steps of a curve ({STEPS}).")
    ] = None,
    removed: Annotated[
        str | None,
        typer.Option(
            metavar="mean|blur",
            help="With --faithfulness: what stays of a patch, the mean colour (default) or a blur.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--images",
            min=1,
            metavar="N",
            help=f"Draw so many where there are more ({SHOWN}; {TESTED} for --faithfulness).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the images drawn, and of random order.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|.svg|.pdf", help="Where the figure goes."),
    ] = None,
    labels: ClassLabels = None,
    image_size: ImageSize = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data if need be.")
    ] = False,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Draw which parts of an image a model uses, or test how faithful such maps are."""
    asked = {"layer": layer, "head": head, "token": token, "each": each}
    tested = {"steps": steps, "removed": removed}
    shared: dict[str, Any] = {
        "seed": seed,
        "labels": labels,
        "download": download,
        **({} if count is None else {"count": count}),
        **loading(changes, image_size=image_size),
    }
    if faithfulness:
        _refuse({"class": target, **asked}, "is not for --faithfulness, which takes each method")
        chosen = None if method is None else [name.strip() for name in method.split(",")]
        given = {name: value for name, value in tested.items() if value is not None}
        _test(model, images, output, json, methods=chosen, **given, **shared)
        return
    _refuse(tested, "is for --faithfulness")
    if output is None and not json:
        raise typer.BadParameter("nothing to write: give --output FILE.png, --json, or both")
    _explain(
        model, images, output, json, {"method": method or "relevance", **asked}, target, shared
    )


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"--{name} {why}")


def _explain(
    model: str,
    images: list[str],
    output: Path | None,
    json: bool,
    asked: dict[str, Any],
    target: str | None,
    shared: dict[str, Any],
) -> None:
    from vitlab.explain.request import Ask
    from vitlab.jobs.explain import explain as run

    with showing() as watch:
        found = run(
            model, images, ask=Ask(**asked), target=target, output=output, watch=watch, **shared
        )
    if json:
        print_json(found.to_json())
        return
    _print(found)


def _print(found: "Explained") -> None:
    from vitlab.explain.explanation import caption

    print_line(caption(found.explanations))
    rows = ((str(one.path), one.target or "-", *_likeliest(one)) for one in found.explanations)
    print_table(("image", "map of", "model says", ""), rows)
    if found.total > len(found.explanations) + len(found.broken):
        shown = len(found.explanations)
        print_line(f"{shown} of {found.total:,} images, drawn by chance (--images N draws more)")
    print_left_out(found.broken)
    print_line(f"figure: {found.output}")


def _likeliest(one: "Explanation") -> tuple[str, str]:
    if not one.top:
        return "-", "-"
    label, number = one.top[0]
    return label, f"{number:.4g}" if one.task == "regression" else f"{number:.1%}"


def _test(model: str, images: list[str], output: Path | None, json: bool, **options: Any) -> None:
    from vitlab.explain.figure import check_name
    from vitlab.jobs.faithfulness import faithfulness as run
    from vitlab.jobs.faithfulness import write_plot

    if output is not None:
        check_name(output)
    with showing() as watch:
        found = run(model, images, watch=watch, **options)
    if output is not None:
        write_plot(found, output)
    if json:
        print_json(found.to_json())
        return
    _print_test(found)
    if output is not None:
        print_line()
        print_line(f"figure: {output}")


def _print_test(found: "Faithfulness") -> None:
    print_text(
        f"{found.images:,} images, {found.steps} steps, removed patches: {found.removed}. "
        f"Area under the probability of the predicted class, with its 95% interval;\n"
        f"better: how much less (deletion) or more (insertion) than in random order, same images."
    )
    print_table(
        ("method", "deletion", "better by", "insertion", "better by"),
        (
            (score.method, *_cells(score.deletion), *_cells(score.insertion))
            for score in found.scores
        ),
    )
    print_left_out(found.broken)


def _cells(area: "Area") -> tuple[str, str]:
    def cell(value: float, ends: tuple[float, float] | None) -> str:
        return f"{value:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")

    by_chance = area.gain == 0 and area.gain_interval in (None, (0, 0))
    better = "-" if by_chance else cell(area.gain, area.gain_interval)
    return cell(area.mean, area.interval), better
