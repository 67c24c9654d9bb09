"""`vitlab serve`: a model behind an HTTP address."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import (
    ClassLabels,
    Engine,
    ModelOrExport,
    Preparation,
    loading,
    states_preprocessing,
)
from vitlab.cli.output import print_line
from vitlab.errors import MissingExtra

NEEDED = ("starlette", "uvicorn", "prometheus_client")


@states_preprocessing
def serve(
    model: ModelOrExport,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8000,
    engine: Engine = "auto",
    labels: ClassLabels = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Images that are computed at once.")] = 32,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Images that may wait; beyond, the answer is 429.")
    ] = 128,
    max_upload: Annotated[str, typer.Option(metavar="SIZE", help="Largest body.")] = "20MB",
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Largest image; default: VITLAB_MAX_PIXELS.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds in which a request is answered.")] = 10.0,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept only these keys, one a line.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name under which clients reach it; repeatable."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Web pages that may use it; repeatable."),
    ] = None,
    public_metrics: Annotated[
        bool, typer.Option("--public-metrics", help="No key for /metrics.")
    ] = False,
    drain: Annotated[
        float | None,
        typer.Option(
            help="Seconds to finish accepted requests after SIGTERM; default: 30, or the deadline."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No log line per request.")] = False,
    preprocessing: Preparation = None,
) -> None:
    """Serve a model over HTTP: POST an image to /classify; docs/serving.md has the rest."""
    if not all(map(find_spec, NEEDED)):
        raise MissingExtra("serve", "vitlab serve")
    from vitlab.classify.classifier import FILES, load, open_classifier
    from vitlab.machine.device import cores
    from vitlab.serve.logs import log_to_stderr
    from vitlab.serve.server import run
    from vitlab.serve.settings import Settings, parse_bytes, read_keys

    settings = Settings(
        host=host,
        port=port,
        max_batch=max_batch,
        max_queue=max_queue,
        max_upload=parse_bytes(max_upload),
        max_pixels=max_pixels,
        deadline=deadline,
        drain=drain,
        decoders=cores(),
        keys=frozenset() if api_key_file is None else read_keys(api_key_file),
        public_metrics=public_metrics,
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
    )
    if settings.exposed:
        print_line(
            f"warning: {host} can be reached by others, and no key is needed (--api-key-file)",
            file=sys.stderr,
        )
    stated = loading(labels=labels, preprocessing=preprocessing)
    classifier = open_classifier(model, engine=engine, quickly=True, **stated)
    log_to_stderr(requests=not quiet)
    run(
        classifier,
        settings,
        open_network=None if Path(model).suffix in FILES else partial(load, model, labels=labels),
        started=lambda url: print_line(f"{model}: {url}", flush=True),
    )
