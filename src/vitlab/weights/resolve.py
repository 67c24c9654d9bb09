"""Which model a file holds: tensors first, then a config file, a keyword, a stated default."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vitlab.errors import UnknownName, WeightsError
from vitlab.models.config import Size, ViTConfig
from vitlab.weights.layout import HEAD_WIDTH, Inferred
from vitlab.weights.positions import Resolved, plain_size, with_positions

FREE = {
    "dropout",
    "attention_dropout",
    "drop_path",
    "dynamic_size",
    "position_resize",
    "attention",
    "window_size",
    "zero_init_residual",
    "relative_local",
}
"""Fields that change what a model does and none of its tensors."""
ADAPTED = {"image_size", "classes", "channels", "head", "representation_size"}
"""Fields whose tensors are adapted when they change."""
IDENTITY = ("width", "depth", "mlp_width", "patch_size")
"""Fields that tell whether a config file speaks about these tensors."""
UNUSED_IN_EVAL = ("dropout", "attention_dropout")


def check_keywords(changes: Mapping[str, Any]) -> None:
    """An unknown keyword is an error with near matches."""
    known = [field.name for field in fields(ViTConfig)]
    for name in changes:
        if name not in known:
            raise UnknownName("keyword", name, known)


def check_known(config: ViTConfig, changes: Mapping[str, Any], *, fixed_pool: bool) -> None:
    """A keyword must not contradict what is known about the file."""
    for name, value in changes.items():
        known = getattr(config, name)
        if name in FREE or name in ADAPTED or plain_size(value) == plain_size(known):
            continue
        if name == "pool" and not fixed_pool:
            continue
        if name == "head_width" and value in (None, config.key_width):
            continue
        if name == "layer_scale" and None not in (value, known):
            continue
        raise WeightsError(f"{name}={value!r} contradicts the weights, which say {known!r}")


def resolve(
    inferred: Inferred,
    beside: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    architecture: Mapping[str, Any],
    stored_image_size: Size | None,
) -> Resolved:
    """The config of a foreign file as it was saved, before any adaptation.

    `architecture` completes `beside` where a config file names an architecture.
    """
    decided, assumed = dict(inferred.decided), list(inferred.notes)
    stated, unrelated = _related(beside, decided)
    usual, unusual = _related(architecture, decided)
    beside = {**usual, **stated}
    assumed += unrelated or unusual
    _check_agreement(beside, decided)
    given = {**changes, **beside}
    known = decided | {name: beside[name] for name in UNUSED_IN_EVAL if name in beside}
    for name, constant in inferred.constants.items():
        if not name.startswith("resnet_") or decided.get("stem") == "resnet":
            known[name] = given.get(name, constant)
    for name, default in inferred.defaults.items():
        known[name] = given.get(name, default)
        if name not in given:
            assumed.append(f"{name} {default}")
    known |= _heads(inferred, given, assumed)
    stored = with_positions(inferred, known, beside, changes, stored_image_size, assumed)
    check_known(stored.config, changes, fixed_pool="pool" in decided)
    return stored


def _related(
    beside: Mapping[str, Any], decided: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """A config file that contradicts the tensors describes another model and is left alone."""
    for name in IDENTITY:
        if name == "patch_size" and decided.get("stem") == "resnet":
            continue
        if name in beside and plain_size(beside[name]) != plain_size(decided[name]):
            note = f"config.json is of another model ({name} {beside[name]}, not {decided[name]})"
            return {}, [note]
    return beside, []


def _check_agreement(beside: Mapping[str, Any], decided: Mapping[str, Any]) -> None:
    """Raise where a config file and the tensors of the same model disagree."""
    for name in sorted(beside.keys() & decided.keys() - {*ADAPTED - {"channels"}, *IDENTITY}):
        found, stated = decided[name], beside[name]
        present = name == "layer_scale" and None not in (found, stated)
        if stated != found and not present:
            raise WeightsError(
                f"the config file says {name}={stated!r}, but the tensors say {found!r}"
            )


def _heads(inferred: Inferred, given: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Heads and head width, whose product is the only thing that most tensors show."""
    inner = inferred.attention_width
    if inner is None:
        return {}
    heads = inferred.decided.get("heads", given.get("heads"))
    if heads is None:
        head_width = given.get("head_width")
        published = inferred.published_heads.get(inner)
        if head_width is None and published:
            head_width = inner // published
            assumed.append(f"heads {published}: published models of width {inner}")
        elif head_width is None:
            head_width = HEAD_WIDTH
            assumed.append(f"heads {inner // HEAD_WIDTH}: head width {HEAD_WIDTH}")
        if inner % head_width:
            raise WeightsError(
                f"the tensors do not tell the number of heads, and {inner} is not a multiple of "
                f"head width {head_width}; pass heads=..."
            )
        heads = inner // head_width
    if heads < 1 or inner % heads:
        raise WeightsError(f"heads={heads} does not divide the {inner} outputs of the queries")
    head_width = inner // heads
    if given.get("head_width") not in (None, head_width):
        raise WeightsError(
            f"head_width={given['head_width']} contradicts the tensors: {heads} heads share {inner}"
        )
    even = heads * head_width == inferred.decided["width"]
    return {"heads": heads, "head_width": None if even else head_width}
