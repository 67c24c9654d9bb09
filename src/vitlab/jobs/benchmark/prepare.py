"""Models that take part: prepared by a process of its own, then opened and called by an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

from vitlab.classify.classifier import FILES, EngineName, open_classifier
from vitlab.config import from_dict, to_dict
from vitlab.errors import UnknownName, VitlabError, WeightsError
from vitlab.weights.exported import ExportMetadata, Quantized

COMPILE = "compile"
"""The engine torch with a model compiled by `torch.compile`; for timing alone."""
ENGINES: tuple[str, ...] = (*get_args(EngineName), COMPILE)
DEFAULT_ENGINE = "auto"
IMAGES = "images.npy"
FORMATS = {
    "auto": None,
    "torch": None,
    COMPILE: None,
    "onnxruntime": "onnx",
    "openvino": "onnx",
    "aoti": "aoti",
}
"""Export format that an engine runs; None: the model itself, or its ONNX file beside it."""
MERGING = ("torch", "onnxruntime", "openvino", "aoti")
"""Engines that can merge tokens; `auto` runs the files that there are."""
HEAD_STD = 0.02
"""Deviation of the weights that replace a head of zeros, with which all results would agree."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model ready to be timed: its files, task and cost."""

    name: str
    places: dict[str, str]
    """Path that each engine opens."""
    folder: str
    """Folder of the images."""
    fresh: bool
    """True if the weights are random."""
    task: str
    parameters: int | None
    """None: not stored in an exported file."""
    bytes: int
    """Size of the parameters as stored, or of an exported file."""
    flops: tuple[int | None, ...]
    """FLOPs of one image, for each requested number of merged tokens."""
    config: dict[str, Any]
    judgeable: bool = True
    """True if a trained head and known preprocessing allow an evaluation."""
    evaluated: str = ""
    """Path that is opened for its accuracy."""
    network: str | None = None
    """Digest of the weights: equal for the same network; None: not known."""
    exported: bool = False
    """True for an exported file, whose engine and merging are fixed."""
    merge_tokens: int = 0
    """Tokens that an exported file merges."""
    quantize: Quantized | None = None
    pixels: bool = False
    """An exported file that takes 8-bit pixels."""
    warning: str | None = None
    """Assumptions made about the weights."""

    def place(self, engine: str, merge_tokens: int) -> str:
        """Path that an engine opens for a number of merged tokens."""
        own = place_name(engine, merge_tokens)
        return self.places[own if own in self.places else engine]


def place_name(engine: str, merge_tokens: int) -> str:
    """Engine and number of merged tokens as text."""
    return engine + (f" R={merge_tokens}" if merge_tokens else "")


def prepare(
    model: str,
    *,
    folder: str,
    engines: Sequence[str],
    merge_tokens: Sequence[int],
    batch: int,
    preprocessing: dict[str, Any] | None = None,
) -> Callable[[], dict[str, Any]]:
    """Write images and exported files for one model; the call returns a `Prepared` as a dict."""
    from vitlab.jobs.any_model import open_any, stated
    from vitlab.models.cost import image_shape
    from vitlab.weights.bundle import save_model
    from vitlab.weights.source import network_digest

    opened = open_any(model, **stated(preprocessing))
    network, source, place = opened.classifier.model, opened.classifier.source, Path(folder)
    if not network.config.classes:
        raise WeightsError(f"{opened.name} has no head; valid: a classifier")
    silent = opened.fresh or source.zero_head
    own, evaluated = place / "model", model
    if silent or source.preprocessing is None:
        _save(network, own, new_head=silent)
        model = str(own)
    elif preprocessing is not None:
        save_model(own, network)
        model = str(own)
    write_images(own, (batch, *image_shape(network)))
    found = Prepared(
        name=opened.name,
        places=_places(model, own, engines, merge_tokens),
        evaluated=evaluated,
        judgeable=not silent and source.preprocessing is not None,
        network=network_digest(network),
        folder=str(own),
        fresh=opened.fresh,
        task=source.task,
        warning=None if opened.fresh else source.warning,
        **_facts(network, merge_tokens),
    )
    return lambda: to_dict(found)


def prepared(told: dict[str, Any]) -> Prepared:
    """Read the dict that a preparing process returned."""
    return from_dict(Prepared, told)


def _places(
    model: str, own: Path, engines: Sequence[str], merge_tokens: Sequence[int]
) -> dict[str, str]:
    """Path that each engine opens: the model, or a file exported for it."""
    from vitlab.jobs.export import export

    found = {}
    for engine, count in product(engines, merge_tokens):
        format = FORMATS[engine]
        if engine == "auto" and model == str(own):
            _complete(own)
        if format is None or (not count and _has_onnx(model, format)):
            found[engine] = model
        elif engine in MERGING:
            stem = f"merged-{count}" if count else "model"
            file = own / (f"{stem}.pt2" if format == "aoti" else f"{stem}.onnx")
            if not file.exists():
                export(model, format=format, output=file, merge_tokens=count)
            found[place_name(engine, count)] = str(file)
    return found


def _complete(bundle: Path) -> None:
    """Write the ONNX file of a model that was saved here, as training does if it can.

    Otherwise `auto` computes in torch.
    """
    from vitlab.exporting.onnx import exportable
    from vitlab.jobs.export import try_export
    from vitlab.weights.bundle import ONNX, WEIGHTS

    if exportable(bundle / WEIGHTS) and not (bundle / ONNX).exists():
        try_export(bundle, compact=False)


def _has_onnx(model: str, format: str) -> bool:
    """True if a bundle has its own ONNX file, of these weights and without merging."""
    from vitlab.classify.exported import StaleExport, open_beside
    from vitlab.weights.bundle import ONNX, find_bundle
    from vitlab.weights.resolve import locate, named

    if format != "onnx" or named(model) is not None:
        return False
    folder = find_bundle(locate(model))
    if not (folder / ONNX).is_file():
        return False
    try:
        open_beside(folder, engine="onnxruntime")
    except StaleExport:
        return False
    return True


def _facts(model: Any, merge_tokens: Sequence[int]) -> dict[str, Any]:
    from vitlab.models.cost import cost
    from vitlab.models.merging import merging

    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(tensor.nbytes for tensor in model.state_dict().values()),
        "flops": tuple(cost(merging(model, count)).flops for count in merge_tokens),
        "config": to_dict(model.config),
    }


def write_images(place: Path, shape: tuple[int, ...], *, pixels: bool = False) -> None:
    """Random images, the same for all models of this shape: normalised, or as 8-bit pixels."""
    import numpy as np

    place.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    if pixels:
        images = np.clip(128 + 64 * images, 0, 255).astype(np.uint8)
    np.save(place / IMAGES, images)


def _save(model: Any, place: Path, *, new_head: bool) -> None:
    """Save a bundle; its preprocessing does not matter, since images are random."""
    import torch

    from vitlab.images.preprocessing import Preprocessing
    from vitlab.models.config import pair
    from vitlab.weights.bundle import save_bundle

    if new_head:
        head = getattr(model, "head", None)
        assert isinstance(head, torch.nn.Linear)
        torch.manual_seed(0)
        torch.nn.init.normal_(head.weight, std=HEAD_STD)
    config = model.config
    half = (0.5,) * config.channels
    save_bundle(
        place,
        model,
        preprocessing=Preprocessing(size=pair(config.image_size), mean=half, std=half),
        labels=tuple(map(str, range(config.classes))),
        metrics={},
        provenance={},
    )


# Exported files: which engines run them, and what their metadata says.


def is_exported(model: str) -> bool:
    """True if the name is that of a file of `vitlab export`."""
    return Path(model).suffix in FILES


def titles(models: Sequence[str]) -> dict[str, str]:
    """Titles of exported files: their names, or the paths given where two have the same name.

    The ending stays: one model may be there in several formats.
    """
    names = [Path(model).name for model in models if is_exported(model)]
    return {
        model: Path(model).name if names.count(Path(model).name) == 1 else model
        for model in models
        if is_exported(model)
    }


def engines_of(model: str, engines: Sequence[str]) -> tuple[str, ...]:
    """The engines that can run a file; its usual one if none can."""
    able = FILES[Path(model).suffix]
    return tuple(name for name in engines if name in ("auto", *able)) or able[:1]


def prepare_exported(
    model: str, *, title: str, folder: str, engines: Sequence[str], batch: int
) -> Callable[[], dict[str, Any]]:
    """Write images for an exported file; the call returns a `Prepared` as a dict."""
    chosen = engines_of(model, engines)
    opened = open_classifier(model, engine=chosen[0])
    assert opened.exported is not None
    facts, preprocessing = opened.exported.metadata.facts, opened.preprocessing
    shape = (batch, preprocessing.channels, *preprocessing.size)
    write_images(Path(folder), shape, pixels=facts.preprocess_inside)
    found = Prepared(
        name=title,
        places=dict.fromkeys(chosen, model),
        folder=folder,
        fresh=False,
        task=opened.source.task,
        bytes=sum(file.stat().st_size for file in _files(Path(model))),
        evaluated=model,
        network=facts.network,
        exported=True,
        merge_tokens=facts.merge_tokens,
        quantize=facts.quantize,
        pixels=facts.preprocess_inside,
        **_cost(opened.exported.metadata),
    )
    return lambda: to_dict(found)


def _files(model: Path) -> list[Path]:
    """Paths of the file, and of the one beside it that holds large weights."""
    beside = model.with_name(f"{model.name}.data")
    return [model, beside] if beside.is_file() else [model]


def _cost(metadata: ExportMetadata) -> dict[str, Any]:
    """Cost of the network in the metadata; None if it cannot be built."""
    from vitlab.models.cost import cost, without_memory
    from vitlab.models.merging import merging
    from vitlab.weights.bundle import ARCHITECTURES

    unknown: dict[str, Any] = {"parameters": None, "flops": (None,), "config": {}}
    kind = ARCHITECTURES.get(str(metadata.config.get("architecture")))
    if kind is None:
        return unknown
    try:
        described: Any = from_dict(kind, metadata.config.get("model"))
        network, _ = without_memory(described)
        found = cost(merging(network, metadata.facts.merge_tokens))
    except VitlabError:  # made of parts that are registered elsewhere
        return unknown
    return {"parameters": found.parameters, "flops": (found.flops,), "config": to_dict(described)}


def check_engine(name: str) -> None:
    """Raise if the engine does not exist."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)


def compile_model(model: Any) -> None:
    """Compile the functions of a prediction, in place; raise if no compiler works."""
    import torch

    from vitlab.models.vit import logits_of
    from vitlab.training.state import check_compiler

    check_compiler(next(model.parameters()).device)
    called: Any = logits_of(model)
    if called is model:
        model.compile()
    else:
        model.logits = torch.compile(called)


def engine(
    place: str, folder: str, engine: str, merge_tokens: int, batch: int
) -> Callable[[], Any]:
    """Return the call to be timed: probabilities of the prepared images, as in `vitlab predict`."""
    import numpy as np

    check_engine(engine)
    images = np.load(Path(folder) / IMAGES)[:batch]
    runs = "torch" if engine == COMPILE else engine
    classifier = open_classifier(place, engine=runs, merge_tokens=merge_tokens)
    if engine == COMPILE:
        compile_model(classifier.model)
    opened = classifier.predictor(batch_size=batch).engine
    return lambda: opened.predict(images)
