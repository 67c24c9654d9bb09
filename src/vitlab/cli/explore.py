"""`vitlab explore`: what a model attends to, in the browser."""

import threading
import webbrowser
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import ClassLabels, Preparation, loading, states_preprocessing
from vitlab.cli.output import print_line
from vitlab.cli.progress import image_progress
from vitlab.cli.serve import NEEDED
from vitlab.errors import MissingExtra

if TYPE_CHECKING:
    from vitlab.classify.classifier import Classifier

PANELS = 2
"""Images that the page shows side by side: what is computed at once."""


@states_preprocessing
def explore(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="A run, a bundle, a weight file, or a name (of a variant: random weights).",
        ),
    ] = "cifar10",
    images: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Sample images or a folder of them; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8000,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    static: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the page with its samples for any web server."),
    ] = None,
    labels: ClassLabels = None,
    preprocessing: Preparation = None,
) -> None:
    """See in the browser what a model attends to: attention, maps, layers, painted patches."""
    if static is not None:
        _write(_open(model, labels, preprocessing), tuple(images or ()), static)
        return
    if not all(map(find_spec, NEEDED)):
        raise MissingExtra("serve", "vitlab explore")
    from vitlab.machine.device import cores
    from vitlab.serve.server import run
    from vitlab.serve.settings import Settings

    settings = Settings(
        port=port, max_batch=PANELS, decoders=min(2, cores()), samples=tuple(images or ())
    )
    classifier = _open(model, labels, preprocessing)

    def started(url: str) -> None:
        print_line(f"{model}: {url}", flush=True)
        if browser:  # opening one may block for seconds
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    run(classifier, settings, warm_up=_warm_up(classifier), started=started)


def _warm_up(classifier: "Classifier") -> "Callable[[], None] | None":
    if classifier.model is None:
        return None
    from vitlab.serve.network import warm_up

    return partial(warm_up, classifier)


def _open(model: str, labels: Any, preprocessing: Preparation) -> "Classifier":
    from vitlab.classify.classifier import open_classifier
    from vitlab.jobs.any_model import is_name, open_any

    if Path(model).suffix != ".onnx" and is_name(model):
        return open_any(model, **loading(preprocessing=preprocessing)).classifier
    engine = "auto" if Path(model).suffix in (".onnx", ".pt2") else "torch"
    return open_classifier(
        model, engine=engine, **loading(labels=labels, preprocessing=preprocessing)
    )


def _write(classifier: "Classifier", images: tuple[Path, ...], folder: Path) -> None:
    from vitlab.serve.samples import samples_of
    from vitlab.serve.static_page import write_static

    with image_progress() as watch:
        written = write_static(folder, classifier, samples_of(images), watch)
    print_line(f"{folder}: {written / 1e6:.1f} MB; see it with: python -m http.server -d {folder}")
