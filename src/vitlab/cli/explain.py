"""`vitlab explain`: heat maps of a prediction as a figure or numbers, and tests of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Changes,
    ClassLabels,
    Download,
    DrawSeed,
    Images,
    ImageSize,
    Json,
    Model,
    Patch,
    Preparation,
    loading,
    split_names,
    states_preprocessing,
)
from vitlab.cli.output import print_json, print_left_out, print_line, print_table, print_text
from vitlab.cli.progress import job_progress
from vitlab.explain.limits import SHOWN, STEPS, TESTED

if TYPE_CHECKING:
    from vitlab.explain.explanation import Explanation
    from vitlab.jobs.explain import Explained
    from vitlab.jobs.faithfulness import Area, Faithfulness


@states_preprocessing
def explain(
    model: Model,
    images: Images,
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
    token: Patch = None,
    each: Annotated[
        str | None,
        typer.Option(
            metavar="layer|head",
            help="One map per block; for attention also one per head of each block.",
        ),
    ] = None,
    faithfulness: Annotated[
        bool,
        typer.Option("--faithfulness", help="Test the maps instead: delete and insert patches."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=2, help=f"With --faithfulness: steps of a curve ({STEPS}).")
    ] = None,
    removed: Annotated[
        str | None,
        typer.Option(
            metavar="mean|blur",
            help="With --faithfulness: deleted patches get the mean colour (default) or a blur.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--images",
            min=1,
            metavar="N",
            help=f"Draw at most N images ({SHOWN}; {TESTED} for --faithfulness).",
        ),
    ] = None,
    seed: DrawSeed = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|.svg|.pdf", help="Where the figure goes."),
    ] = None,
    labels: ClassLabels = None,
    image_size: ImageSize = None,
    download: Download = False,
    changes: Changes = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Draw which parts of an image a model uses, or test how faithful such maps are."""
    request = {"layer": layer, "head": head, "token": token, "each": each}
    tested = {"steps": steps, "removed": removed}
    shared: dict[str, Any] = {
        "seed": seed,
        "labels": labels,
        "download": download,
        **({} if count is None else {"count": count}),
        **loading(changes, image_size=image_size, preprocessing=preprocessing),
    }
    if faithfulness:
        _refuse({"class": target, **request}, "is not for --faithfulness, which takes each method")
        given = {name: value for name, value in tested.items() if value is not None}
        _test(model, images, output, json, methods=split_names(method), **given, **shared)
        return
    _refuse(tested, "is for --faithfulness")
    if output is None and not json:
        raise typer.BadParameter("nothing to write: give --output FILE.png, --json, or both")
    request["method"] = method or "relevance"
    _explain(model, images, output, json, request, target=target, **shared)


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"--{name} {why}")


def _explain(
    model: str,
    images: list[str],
    output: Path | None,
    json: bool,
    request: dict[str, Any],
    **options: Any,
) -> None:
    from vitlab.explain.request import ExplainRequest
    from vitlab.jobs.explain import explain as run

    with job_progress() as watch:
        found = run(
            model, images, ask=ExplainRequest(**request), output=output, watch=watch, **options
        )
    if json:
        print_json(found.to_json())
        return
    _print(found)


def _print(found: "Explained") -> None:
    from vitlab.explain.explanation import caption

    print_line(caption(found.explanations))
    rows = ((str(one.path), one.target or "-", *_likeliest(one)) for one in found.explanations)
    print_table(("image", "map of", "prediction", ""), rows)
    if found.total > len(found.explanations) + len(found.broken):
        shown = len(found.explanations)
        print_line(f"{shown} of {found.total:,} images, drawn at random (--images N draws more)")
    print_left_out(found.broken)
    print_line(f"figure: {found.output}")


def _likeliest(one: "Explanation") -> tuple[str, str]:
    if not one.top:
        return "-", "-"
    from vitlab.objectives.objective import objective_of

    label, number = one.top[0]
    return label, f"{number:.4g}" if objective_of(one.task).has_values else f"{number:.1%}"


def _test(model: str, images: list[str], output: Path | None, json: bool, **options: Any) -> None:
    from vitlab.explain.figure import check_name
    from vitlab.jobs.faithfulness import faithfulness as run
    from vitlab.jobs.faithfulness import write_plot

    if output is not None:
        check_name(output)
    with job_progress() as watch:
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
