"""What contestants need, written by a process of its own: weights for each of them, and images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from vitlab.config import from_dict, to_dict
from vitlab.errors import InputError, WeightsError
from vitlab.jobs.benchmark.peers import PEERS, Peer
from vitlab.weights.exported import Quantized

IMAGES = "images.npy"
FORMATS = {
    "auto": None,
    "torch": None,
    "onnxruntime": "onnx",
    "openvino": "onnx",
    "aoti": "aoti",
}
"""What an engine runs; None: the model itself, and what lies beside it."""
MERGING = ("torch", "onnxruntime", "openvino", "aoti")
"""Engines that are asked for merged tokens by name; `auto` takes what there is."""
HEAD_STD = 0.02
"""Of the numbers that take the place of a head of zeros, with which all contestants would agree."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model, where it lies, and what it costs."""

    name: str
    places: dict[str, str]
    """What each engine opens."""
    folder: str
    """Where the images and the peers' weights are."""
    fresh: bool
    """Weights that have learned nothing."""
    task: str
    parameters: int | None
    """None: an exported file does not tell."""
    bytes: int
    """Of its parameters, as they are stored; of an exported file, of the file."""
    flops: tuple[int | None, ...]
    """Of one image, for each number of merged tokens that was asked for."""
    config: dict[str, Any]
    peers: tuple[str, ...] = ()
    """Libraries that can express it."""
    twin: bool = False
    """A network that somebody asked for in another form: as a library builds it."""
    judgeable: bool = True
    """It has learned, and it is known how images are prepared."""
    judged: str = ""
    """What is opened to tell how good it is."""
    network: str | None = None
    """The same for models of the same weights; None: not known."""
    exported: bool = False
    """A file, in which everything is as it was written."""
    merge_tokens: int = 0
    """Tokens that an exported file merges."""
    quantize: Quantized | None = None
    pixels: bool = False
    """An exported file that takes 8-bit pixels."""
    warning: str | None = None
    """Assumptions about the weights."""

    def place(self, engine: str, merge_tokens: int) -> str:
        """What an engine opens for so many merged tokens."""
        own = place_name(engine, merge_tokens)
        return self.places[own if own in self.places else engine]


def place_name(engine: str, merge_tokens: int) -> str:
    """An engine and what it merges, in words."""
    return engine + (f" R={merge_tokens}" if merge_tokens else "")


def prepare(
    model: str,
    *,
    folder: str,
    engines: Sequence[str],
    merge_tokens: Sequence[int],
    peers: Sequence[str],
    batch: int,
) -> Callable[[], list[dict[str, Any]]]:
    """Write all that a contest of one model needs; tell of the model, and of its twins."""
    from vitlab.jobs.any_model import open_any
    from vitlab.weights.digest import network_digest

    opened = open_any(model)
    network, source, place = opened.classifier.model, opened.classifier.source, Path(folder)
    if not network.config.classes:
        raise WeightsError(f"{opened.name} has no head; valid: a classifier")
    silent = opened.fresh or source.zero_head
    own = place / "model"
    if silent or source.preprocessing is None:
        _save(network, own, new_head=silent)
        model = str(own)
    able = [name for name in peers if not _needs_twin(PEERS[name], network.config)]
    _write(network, own, able, batch)
    told = [
        Prepared(
            name=opened.name,
            places=_places(model, own, engines, merge_tokens),
            judged=model,
            judgeable=not silent and source.preprocessing is not None,
            network=network_digest(network),
            folder=str(own),
            fresh=opened.fresh,
            task=source.task,
            peers=tuple(able),
            warning=None if opened.fresh else source.warning,
            **_facts(network, merge_tokens),
        )
    ]
    for name in peers:
        if name not in able:
            at = place / f"twin-{name}"
            told.append(_twin(network.config, opened.name, name, at, engines[0], batch))
    return lambda: [to_dict(one) for one in told]


def prepared(told: dict[str, Any]) -> Prepared:
    """What a process told of a model."""
    return from_dict(Prepared, told)


def _places(
    model: str, own: Path, engines: Sequence[str], merge_tokens: Sequence[int]
) -> dict[str, str]:
    """What each engine opens: the model, or a file that is exported for it."""
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
    """Give a model that was saved here its ONNX file, as a trained one gets it where that can be.

    Else `auto` computes in torch.
    """
    from vitlab.jobs.export import exportable, try_export
    from vitlab.weights.bundle_files import ONNX, WEIGHTS

    if exportable(bundle / WEIGHTS) and not (bundle / ONNX).exists():
        try_export(bundle, compact=False)


def _has_onnx(model: str, format: str) -> bool:
    """Whether a bundle brings its own file, of these weights and with every token."""
    from vitlab.classify.exported_model import StaleExport, open_beside
    from vitlab.weights.bundle_files import ONNX, find_bundle
    from vitlab.weights.published import locate, named

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


def _write(model: Any, place: Path, peers: Sequence[str], batch: int) -> None:
    """Images, and the weights as each library reads them."""
    from vitlab.models.cost import image_shape
    from vitlab.weights.save import save_weights

    write_images(place, (batch, *image_shape(model)))
    for name in peers:
        file = place / PEERS[name].file
        if not file.suffix:
            file.mkdir(exist_ok=True)
        save_weights(model, file, format=PEERS[name].format)


def write_images(place: Path, shape: tuple[int, ...], *, pixels: bool = False) -> None:
    """Random images, the same for all models of this shape: normalised, or as 8-bit pixels."""
    import numpy as np

    place.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    if pixels:
        images = np.clip(128 + 64 * images, 0, 255).astype(np.uint8)
    np.save(place / IMAGES, images)


def _save(model: Any, place: Path, *, new_head: bool) -> None:
    """A bundle; images are random and need no preparation, so that any will do."""
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


def _needs_twin(peer: Peer, config: Any) -> bool:
    """Whether a library builds its networks otherwise; what it cannot build at all is refused."""
    from vitlab.models.config import ViTConfig
    from vitlab.weights.formats.detect import layout_named

    if not isinstance(config, ViTConfig):
        raise InputError(
            f"{peer.package} cannot be asked for a {type(config).__name__.removesuffix('Config')}; "
            f"valid: a Vision Transformer"
        )
    try:
        layout_named(peer.format).check(config)
    except WeightsError:
        if peer.twin:
            return True
        raise
    return False


def _twin(config: Any, called: str, name: str, place: Path, engine: str, batch: int) -> Prepared:
    """The network of the same sizes as a library builds it, with random weights."""
    import torch

    from vitlab.models.build import create_model
    from vitlab.weights.formats.detect import layout_named

    changed = replace(config, **PEERS[name].twin)
    layout_named(PEERS[name].format).check(changed)
    torch.manual_seed(0)
    model = create_model(changed)
    _save(model, place, new_head=True)
    _write(model, place, [name], batch)
    return Prepared(
        name=f"{called} as in {name}",
        places=_places(str(place), place, [engine], [0]),
        judged=str(place),
        folder=str(place),
        fresh=True,
        twin=True,
        task="single-label",
        peers=(name,),
        **_facts(model, (0,)),
    )
