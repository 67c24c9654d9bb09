"""What contestants need, written by a process of its own: weights for each of them, and images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlab.config import from_dict, to_dict
from vitlab.errors import InputError, WeightsError
from vitlab.inference.peers import PEERS, Peer

IMAGES = "images.npy"
FORMATS = {
    "auto": "onnx",
    "torch": None,
    "onnxruntime": "onnx",
    "openvino": "onnx",
    "aoti": "aoti",
}
"""What an engine runs; None: the model itself."""
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
    parameters: int
    bytes: int
    """Of its parameters, as they are stored."""
    flops: tuple[int, ...]
    """Of one image, for each number of merged tokens that was asked for."""
    config: dict[str, Any]
    peers: tuple[str, ...] = ()
    """Libraries that can express it."""
    twin: bool = False
    """A network that somebody asked for in another form: as a library builds it."""


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
    from vitlab.tasks.any_model import open_any

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
            places=_places(model, own, engines),
            folder=str(own),
            fresh=opened.fresh,
            task=source.task,
            peers=tuple(able),
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


def _places(model: str, own: Path, engines: Sequence[str]) -> dict[str, str]:
    """What each engine opens: the model, or a file that is exported for it.

    A model that was saved here gets its ONNX file, as a trained one does.
    """
    from vitlab.tasks.export import export

    saved = model == str(own)
    found = {}
    for engine in engines:
        format = FORMATS[engine]
        if (engine == "auto" and not saved) or format is None or _has_onnx(model, format):
            found[engine] = model
            continue
        file = own / ("model.pt2" if format == "aoti" else "model.onnx")
        if not file.exists():
            export(model, format=format, output=file)
        found[engine] = model if engine == "auto" else str(file)
    return found


def _has_onnx(model: str, format: str) -> bool:
    """Whether a bundle brings its own file."""
    from vitlab.weights.bundle_files import ONNX, find_bundle
    from vitlab.weights.names import locate
    from vitlab.weights.table import named

    if format != "onnx" or named(model) is not None:
        return False
    return (find_bundle(locate(model)) / ONNX).is_file()


def _facts(model: Any, merge_tokens: Sequence[int]) -> dict[str, Any]:
    from vitlab.models.flops import cost
    from vitlab.models.merging import merging

    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(tensor.nbytes for tensor in model.state_dict().values()),
        "flops": tuple(cost(merging(model, count)).flops for count in merge_tokens),
        "config": to_dict(model.config),
    }


def _write(model: Any, place: Path, peers: Sequence[str], batch: int) -> None:
    """Images, and the weights as each library reads them."""
    import numpy as np

    from vitlab.models.flops import image_shape
    from vitlab.weights.save import save_weights

    place.mkdir(parents=True, exist_ok=True)
    shape = (batch, *image_shape(model))
    np.save(place / IMAGES, np.random.default_rng(0).standard_normal(shape, np.float32))
    for name in peers:
        file = place / PEERS[name].file
        if not file.suffix:
            file.mkdir(exist_ok=True)
        save_weights(model, file, format=PEERS[name].format)


def _save(model: Any, place: Path, *, new_head: bool) -> None:
    """A bundle; images are random and need no preparation, so that any will do."""
    import torch

    from vitlab.models.config import pair
    from vitlab.preprocessing import Preprocessing
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
    from vitlab.weights.formats import layout_named

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

    from vitlab.models.registry import create_model
    from vitlab.weights.formats import layout_named

    changed = replace(config, **PEERS[name].twin)
    layout_named(PEERS[name].format).check(changed)
    torch.manual_seed(0)
    model = create_model(changed)
    _save(model, place, new_head=True)
    _write(model, place, [name], batch)
    return Prepared(
        name=f"{called} as in {name}",
        places=_places(str(place), place, [engine]),
        folder=str(place),
        fresh=True,
        twin=True,
        task="single-label",
        peers=(name,),
        **_facts(model, (0,)),
    )
