"""Exported files that take part: what runs them, and what their metadata tells of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitlab.classify.open_model import FILES
from vitlab.config import from_dict, to_dict
from vitlab.errors import VitlabError
from vitlab.jobs.benchmark.prepare import Prepared, write_images
from vitlab.weights.exported import Deployed


def is_exported(model: str) -> bool:
    """Whether a file of `vitlab export` is meant."""
    return Path(model).suffix in FILES


def titles(models: Sequence[str]) -> dict[str, str]:
    """What to call exported files: by their names, or as they were given where two have the same.

    The ending stays: one model may be there in several formats.
    """
    names = [Path(model).name for model in models if is_exported(model)]
    return {
        model: Path(model).name if names.count(Path(model).name) == 1 else model
        for model in models
        if is_exported(model)
    }


def engines_of(model: str, engines: Sequence[str]) -> tuple[str, ...]:
    """Those of the engines that can run a file; its usual one where none can."""
    able = FILES[Path(model).suffix]
    return tuple(name for name in engines if name in ("auto", *able)) or able[:1]


def prepare_exported(
    model: str, *, title: str, folder: str, engines: Sequence[str], batch: int
) -> Callable[[], list[dict[str, Any]]]:
    """Write images for a file; tell what is known of it."""
    from vitlab.classify.exported_model import DeployedModel
    from vitlab.classify.open_model import open_answering

    chosen = engines_of(model, engines)
    opened = open_answering(model, engine=chosen[0])
    assert isinstance(opened, DeployedModel)
    facts, preprocessing = opened.deployed.facts, opened.preprocessing
    shape = (batch, preprocessing.channels, *preprocessing.size)
    write_images(Path(folder), shape, pixels=facts.preprocess_inside)
    told = Prepared(
        name=title,
        places=dict.fromkeys(chosen, model),
        folder=folder,
        fresh=False,
        task=opened.source.task,
        bytes=sum(file.stat().st_size for file in _files(Path(model))),
        judged=model,
        network=facts.network,
        exported=True,
        merge_tokens=facts.merge_tokens,
        quantize=facts.quantize,
        pixels=facts.preprocess_inside,
        **_cost(opened.deployed),
    )
    return lambda: [to_dict(told)]


def _files(model: Path) -> list[Path]:
    """The file, and the one beside it that holds large weights."""
    beside = model.with_name(f"{model.name}.data")
    return [model, beside] if beside.is_file() else [model]


def _cost(deployed: Deployed) -> dict[str, Any]:
    """Of the network that the metadata describes; nothing where it is none that can be built."""
    from vitlab.models.cost import cost, without_memory
    from vitlab.models.merging import merging
    from vitlab.weights.bundle import ARCHITECTURES

    unknown: dict[str, Any] = {"parameters": None, "flops": (None,), "config": {}}
    kind = ARCHITECTURES.get(str(deployed.config.get("architecture")))
    if kind is None:
        return unknown
    try:
        described: Any = from_dict(kind, deployed.config.get("model"))
        network, _ = without_memory(described)
        found = cost(merging(network, deployed.facts.merge_tokens))
    except VitlabError:  # made of parts that are registered elsewhere
        return unknown
    return {"parameters": found.parameters, "flops": (found.flops,), "config": to_dict(described)}
