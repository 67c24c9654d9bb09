"""`load_weights`: any known file to a `VisionTransformer`, one tensor at a time."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from vitlab.config import from_dict, parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.machine.device import device_named
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.models.variants import (
    ModelConfig,
    ResNetConfig,
    TutorialCNNConfig,
    configure,
    known_name,
)
from vitlab.models.variants import create_model as create_fresh
from vitlab.models.vit import VisionTransformer
from vitlab.nn.resize import ResizeMethod
from vitlab.weights.adapt import adapt, adapt_preprocessing, adapted_config, known_rows
from vitlab.weights.bundle import find_bundle
from vitlab.weights.container import CONFIG_KEY, NOTE_KEY, TensorFile, given_tensors, open_weights
from vitlab.weights.fetch import require
from vitlab.weights.formats.detect import recognise
from vitlab.weights.formats.native import meta_model, our_shapes
from vitlab.weights.formats.rules import (
    Inferred,
    Layout,
    StoredShapes,
    check_blocks,
    check_shapes,
    converted,
    expected_shapes,
)
from vitlab.weights.labels import IMAGENET, Labels, known_labels, matching, read_labels
from vitlab.weights.preparation import Stated, read_stated, stating
from vitlab.weights.reading import naming
from vitlab.weights.resolve import (
    Checkpoint,
    default_weights,
    known_licence,
    known_preparation,
    locate,
    named,
    prepared,
)
from vitlab.weights.sidecar import Sidecar, read_note, read_ours, read_sidecar
from vitlab.weights.source import WeightSource
from vitlab.weights.stored_config import (
    ADAPTED,
    FREE,
    Resolved,
    check_keywords,
    check_known,
    resolve,
)

log = logging.getLogger(__name__)


def load_weights(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    format: str | None = None,
    preprocessing: Stated | None = None,
    labels: Labels | None = None,
    resize: str = "auto",
    stored_image_size: Size | None = None,
    keep_classes: Sequence[str] | None = None,
    trust_architecture: bool = False,
    device: str | torch.device = "cpu",
    **changes: Any,
) -> VisionTransformer:
    """Model of a file, a folder, a name or a state dict, in float32 and eval mode.

    `changes` are fields of `ViTConfig`: adaptations (`image_size classes channels head`), values
    not decided by the tensors (`heads norm_eps gelu pool`), and values never stored in them
    (`dropout` and others). `resize="auto"` is the original's zoom for Google's files, else
    antialiased bicubic. `keep_classes` names the classes of a new head: those that the weights know
    by name keep their learned rows, the others start at zero. A config file beside the weights with
    an unknown architecture raises; `trust_architecture` loads it as a plain ViT. `preprocessing`
    is a `Preprocessing`, `imagenet`, `half`, a JSON file, or a dict with some of `mean std
    interpolation crop`, and `base` for the others. `device` is one of torch's, or `auto` for the
    best.

    Logs one warning that lists all values that neither the tensors, nor a config file, nor a
    keyword decide.
    """
    if keep_classes is not None:
        changes = {**changes, "classes": len(keep_classes)}
    check_keywords(changes)
    _check_resize(resize)
    place = device_named(device)
    if preprocessing is not None:
        read_stated(preprocessing)  # a mistake in it is found before the weights are read
    checkpoint = None if isinstance(path, Mapping) else named(path)
    if checkpoint is not None:
        changes = {"image_size": checkpoint.config.image_size} | changes
    file = _open(path, checkpoint)
    try:
        with naming(file.path):
            beside = Sidecar()
            if not isinstance(path, Mapping):
                beside = _known_config(file, checkpoint, trust=trust_architecture)
            model = _load(
                file, format, beside, labels, resize, stored_image_size, keep_classes, changes
            )
    finally:
        file.close()
    model.source = stating(model.source, preprocessing, model.config)
    if checkpoint is not None:  # files in the table are of the format's own implementation
        model.source = replace(model.source, assumed=())
        if str(path) != checkpoint.name:
            log.warning("%s is %s here", path, checkpoint.name)
    if model.source.warning is not None:
        log.warning("%s", model.source.warning)
    return model.to(place)


def _open(
    path: str | os.PathLike[str] | Mapping[str, Any], checkpoint: Checkpoint | None
) -> TensorFile:
    if isinstance(path, Mapping):
        return given_tensors(path)
    return open_weights(find_bundle(locate(path)) if checkpoint is None else require(checkpoint))


def _check_resize(resize: str) -> None:
    if resize not in ("auto", "bicubic", "zoom"):
        raise WeightsError(f"resize={resize!r}; valid: auto, bicubic, zoom")


def _load(
    file: TensorFile,
    format: str | None,
    beside: Sidecar,
    labels: Labels | None,
    resize: str,
    stored_image_size: Size | None,
    keep_classes: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> VisionTransformer:
    layout = recognise(file.shapes, format)
    inferred, stored = _stored(layout, file, beside, changes, stored_image_size)
    method = _method(layout, stored.config, beside, resize, changes)
    target = _target(stored.config, changes, method)
    check_blocks(stored.config.blocks, file.shapes, file=str(file.path))
    rules = layout.rules(stored.config, inferred.dialect)
    expected_ours = our_shapes(stored.config)
    expected = expected_shapes(rules, expected_ours)
    check_shapes(file.shapes, expected, file=str(file.path), ignored=inferred.ignored)

    model = meta_model(target)
    _check_same_tensors(expected_ours, model)
    beside = _by_name(file, layout, stored.config, beside)
    rows = None if keep_classes is None else _known(keep_classes, beside, stored.config, target)
    state: dict[str, Tensor] = {}
    for name, tensor in converted(rules, file.read):
        if rows is not None and name.startswith("head."):
            kept: Tensor | None = known_rows(_float32(tensor), rows)
        else:
            kept = adapt(name, _float32(tensor), stored.config, target, method)
        if kept is not None:
            state[name] = kept.contiguous()
        del tensor, kept
    _assign(model, state)
    source = _source(file, layout, inferred, stored, beside, labels, model)
    if keep_classes is not None and rows is not None:
        pairs = zip(keep_classes, rows, strict=True)
        source = replace(source, known_classes=tuple(n for n, row in pairs if row is not None))
    model.source = source
    return model.eval()


def _known_config(file: TensorFile, checkpoint: Checkpoint | None, *, trust: bool) -> Sidecar:
    """Config from the table, else from inside the file, else from a file beside it."""
    if checkpoint is not None:
        return checkpoint.beside
    config, note = (file.metadata.get(key) for key in (CONFIG_KEY, NOTE_KEY))
    beside = Sidecar() if config else read_sidecar(file.path.parent, trust=trust or bool(note))
    try:
        if config:
            return read_ours(parse_json(config))
        return read_note(parse_json(note), beside) if note else beside
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"truncated or damaged vitlab config in the file: {error}") from error


def _stored(
    layout: Layout,
    file: TensorFile,
    beside: Sidecar,
    changes: Mapping[str, Any],
    stored_image_size: Size | None,
) -> tuple[Inferred, Resolved]:
    """Config of the file as saved, and findings on the way."""
    if beside.config is not None and layout.name == "vitlab":
        inferred = Inferred(decided={})
    else:
        whole = {f.name: getattr(beside.config, f.name) for f in fields(ViTConfig) if beside.config}
        hints = {**whole, **beside.architecture, **changes, **beside.fields}
        inferred = layout.infer(StoredShapes(file.shapes), hints)
        inferred.notes += beside.notes
        inferred.decided |= {
            name: tuple(file.read(tensor).flatten().tolist())
            for name, tensor in inferred.values.items()
        }
    if (beside.config is not None and CONFIG_KEY in file.metadata) or layout.name == "vitlab":
        return inferred, _ours(beside, inferred, changes, stored_image_size)
    return inferred, resolve(
        inferred,
        beside.fields,
        changes,
        architecture=beside.architecture,
        stored_image_size=stored_image_size,
    )


def _ours(
    beside: Sidecar, inferred: Inferred, changes: Mapping[str, Any], stored_image_size: Size | None
) -> Resolved:
    config = beside.config or from_dict(ViTConfig, inferred.decided)
    check_known(config, changes, fixed_pool=config.attention_pool)
    if stored_image_size is not None and pair(stored_image_size) != pair(config.image_size):
        raise WeightsError(
            f"stored_image_size={stored_image_size} contradicts the weights, "
            f"which say {config.image_size}"
        )
    return Resolved(config=config)


def _method(
    layout: Layout, stored: ViTConfig, beside: Sidecar, resize: str, changes: Mapping[str, Any]
) -> ResizeMethod:
    if resize != "auto":
        return "zoom" if resize == "zoom" else "bicubic"
    if "position_resize" in changes:
        chosen: ResizeMethod = changes["position_resize"]
        return chosen
    if beside.config is not None:
        return stored.position_resize
    return "zoom" if layout.name == "google" else "bicubic"


def _target(stored: ViTConfig, changes: Mapping[str, Any], method: ResizeMethod) -> ViTConfig:
    try:
        return adapted_config(stored, changes, method)
    except ConfigError as error:
        raise ConfigError(f"these weights cannot be adapted: {error}") from error


def _check_same_tensors(stored: Iterable[str], model: VisionTransformer) -> None:
    """Raise if a change other than of the head needs missing tensors, or leaves some unused."""
    for name in sorted(set(stored) ^ set(model.state_dict())):
        if not name.startswith(("head.", "pre_logits.")):
            raise WeightsError(f"the changes do not fit these weights: they differ in {name!r}")


def _float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _assign(model: VisionTransformer, state: dict[str, Tensor]) -> None:
    """Assign tensors to the model; a head that the file does not have starts at zero."""
    for name, tensor in model.state_dict().items():
        if name not in state and name.startswith("head."):
            state[name] = torch.zeros(tensor.shape)
    model.load_state_dict(state, strict=True, assign=True)


def _source(
    file: TensorFile,
    layout: Layout,
    inferred: Inferred,
    stored: Resolved,
    beside: Sidecar,
    labels: Labels | None,
    model: VisionTransformer,
) -> WeightSource:
    config, size = model.config, pair(model.config.image_size)
    same_head = config.classes == stored.config.classes
    return WeightSource(
        format=layout.name,
        path=file.path,
        preprocessing=adapt_preprocessing(beside.preprocessing, size, config.channels),
        channels=stored.config.channels,
        labels=_labels(labels, beside, stored.config.classes, config.classes),
        task=beside.task if same_head else "single-label",
        name=beside.name,
        licence=beside.licence,
        zero_head=_is_zero(model),
        assumed=stored.assumed,
        ignored=inferred.ignored,
        dialect=inferred.dialect,
    )


def _by_name(file: TensorFile, layout: Layout, stored: ViTConfig, beside: Sidecar) -> Sidecar:
    """Known values, completed from the name of a published file."""
    preparation = known_preparation(file.path.name, layout.name)
    if preparation is None:
        return beside
    return replace(
        beside,
        preprocessing=beside.preprocessing or prepared(preparation, pair(stored.image_size)),
        dataset=beside.dataset or IMAGENET,
        licence=beside.licence or known_licence(file.path.name),
    )


def _labels(
    given: Labels | None, beside: Sidecar, stored_classes: int, classes: int
) -> tuple[str, ...] | None:
    """Labels of the user, else those beside the file, else those of the head's dataset."""
    if given is not None:
        return read_labels(given, classes)
    if beside.labels and len(beside.labels) == classes:
        return beside.labels
    return known_labels(beside.dataset, classes) if stored_classes == classes else None


def _known(
    classes: Sequence[str], beside: Sidecar, stored: ViTConfig, target: ViTConfig
) -> tuple[int | None, ...]:
    """Index of each class in the stored head, if the new head has the same input."""
    labels = _labels(None, beside, stored.classes, stored.classes)
    same_input = stored.head == target.head and stored.representation == target.representation
    if labels is None or not same_input or beside.task != "single-label":
        return (None,) * len(classes)
    return matching(labels, classes)


def _is_zero(model: VisionTransformer) -> bool:
    if model.head is None:
        return False
    return not (model.head.weight.any() or model.head.bias.any())


# `create_model`: a named model, with fresh or given weights.

ARCHITECTURE = (
    "width",
    "depth",
    "heads",
    "mlp_width",
    "patch_size",
    "stem",
    "resnet_layers",
    "class_token",
    "registers",
    "pool",
    "position",
    "norm",
)
"""Fields in which weights and model must agree; the rest follows from them."""
OF_A_CONFIG = ADAPTED | FREE - {"position_resize"}
"""Fields decided by a configuration; positions are resized as in the weights' own library."""


def _default_weights(model: str | ModelConfig | None) -> str:
    if not isinstance(model, str):
        raise WeightsError("pretrained=True needs the name of a model; valid: the name of weights")
    found = default_weights(model)
    log.warning("pretrained=True is %s", found)
    return found


CNN = Literal["cnn_tutorial", "resnet18_cifar", "resnet50_bit"]
"""Names of the models that are no Vision Transformers."""


@overload
def create_model(
    config: CNN | ResNetConfig | TutorialCNNConfig,
    *,
    pretrained: Literal[False] | None = None,
    device: str | torch.device | None = None,
    **changes: Any,
) -> nn.Module: ...
@overload
def create_model(
    config: str | ViTConfig | None = None,
    *,
    pretrained: str | os.PathLike[str] | Mapping[str, Any] | bool | None = None,
    device: str | torch.device | None = None,
    **changes: Any,
) -> VisionTransformer: ...
def create_model(
    config: str | ModelConfig | None = None,
    *,
    pretrained: str | os.PathLike[str] | Mapping[str, Any] | bool | None = None,
    device: str | torch.device | None = None,
    **changes: Any,
) -> nn.Module:
    """Model by name or configuration, with fresh weights or those of a file or checkpoint.

    With a name, the weights decide the head; with a configuration, it does. `pretrained=True` is a
    default: the weights that the tag of a name of timm means, else the first of the family's
    `DEFAULTS` in the table of published weights.
    """
    given, config = config, known_name(config) if isinstance(config, str) else config
    if isinstance(pretrained, bool):
        pretrained = _default_weights(given) if pretrained else None
    if config is None:
        if pretrained is None:
            raise WeightsError("create_model needs the name of a model, or pretrained weights")
        return load_weights(pretrained, device=device or "cpu", **changes)
    if pretrained is None:
        model = create_fresh(config, **changes)
        return model if device is None else model.to(device_named(device))
    expected = configure(config, **changes)
    if not isinstance(expected, ViTConfig):
        raise WeightsError(f"pretrained weights are for Vision Transformers, not {config!r}")
    decided = {"image_size", "channels"} if isinstance(config, str) else OF_A_CONFIG
    wanted_fields = {name: getattr(expected, name) for name in sorted(decided)}
    model = load_weights(pretrained, device=device or "cpu", **{**wanted_fields, **changes})
    for field in fields(expected):
        if field.name not in ARCHITECTURE:
            continue
        wanted, found = getattr(expected, field.name), getattr(model.config, field.name)
        if wanted != found:
            raise WeightsError(
                f"{model.source.path}: {field.name} is {found!r}, but the model has {wanted!r}"
            )
    return model
