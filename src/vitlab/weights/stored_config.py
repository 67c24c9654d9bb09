"""Config of a file: from tensors first, then a config file, a keyword, a stated default."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from vitlab.errors import ConfigError, UnknownName, WeightsError
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.weights.formats.rules import HEAD_WIDTH, Inferred

# Image size and prefix that a learned position table was stored for.


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """Stored model, and the assumptions made about it."""

    config: ViTConfig
    assumed: tuple[str, ...] = ()


def plain_size(value: Any) -> Any:
    """Size in canonical form."""
    if isinstance(value, list | tuple):
        items = tuple(value)
        return items[0] if len(items) == 2 and items[0] == items[1] else items
    return value


def with_positions(
    inferred: Inferred,
    known: Mapping[str, Any],
    beside: Mapping[str, Any],
    changes: Mapping[str, Any],
    stored_image_size: Size | None,
    assumed: list[str],
) -> Resolved:
    if "position_prefix" in beside:
        inferred = replace(inferred, prefixes=(beside["position_prefix"],))
    if inferred.table is None:
        return _without_table(known, beside, changes, stored_image_size, assumed)
    right = "learned1d" if inferred.positions else known.get("position")
    for position in (changes.get("position"), beside.get("position")):
        if position not in (None, right):
            raise WeightsError(
                f"position={position!r} contradicts the tensors: {inferred.table[0]!r} is a "
                f"learned table (position={right!r})"
            )
    if stored_image_size is not None:
        candidates = [(stored_image_size, "")]
    else:
        candidates = [(s, "") for s in (beside.get("image_size"),) if s is not None]
        squares = _square_sizes(inferred, known)
        likely = next(iter(squares.values()))
        candidates += [(likely, "")] if likely else []
        if "image_size" in changes:
            size = changes["image_size"]
            candidates.append((size, f"stored_image_size {size}: no other grid is known"))
        candidates += [(size, "") for size in squares.values() if size]
    for size, note in candidates:
        config = _fitting(inferred, known, plain_size(size))
        if config is not None:
            notes = [note] if note and config.grid[0] != config.grid[1] else []
            return Resolved(config=config, assumed=(*assumed, *notes))
    raise _no_grid(inferred, known, stored_image_size)


def _without_table(
    known: Mapping[str, Any],
    beside: Mapping[str, Any],
    changes: Mapping[str, Any],
    stored_image_size: Size | None,
    assumed: list[str],
) -> Resolved:
    position = changes.get("position", beside.get("position", known.get("position")))
    if position is None:
        raise WeightsError(
            "the position table is missing; if the model has none, say so: "
            "position='none', position='sincos2d' or position='rope' (with rope_form='dinov3' for "
            "DINOv3)"
        )
    size = stored_image_size or beside.get("image_size") or changes.get("image_size")
    if size is None:
        size = 224
        assumed.append("image_size 224")
    config = _build({**known, "position": position, "image_size": plain_size(size)})
    return Resolved(config=config, assumed=tuple(assumed))


def _prefixes(inferred: Inferred, known: Mapping[str, Any]) -> dict[int, str]:
    """Rows of the table before the patches, for each possible `position_prefix`."""
    if inferred.positions is None:
        return {0: "cls"}  # a table of offsets has no such rows
    tokens = int(known["class_token"])
    counts = {"cls": tokens, "all": tokens + known.get("registers", 0), "none": 0}
    readings: dict[int, str] = {}
    for name in inferred.prefixes:
        label = "cls" if counts[name] == counts["cls"] else name
        readings.setdefault(counts[name], label)
    return readings


def _square_sizes(inferred: Inferred, known: Mapping[str, Any]) -> dict[int, Size | None]:
    """Image size for each number of rows before the patches, the most likely first: the one whose
    patches form a square that fits the table, if there is one.
    """
    assert inferred.table is not None
    sizes: dict[int, Size | None] = {}
    height, width = pair(known["patch_size"])
    stride = 1
    if known.get("stem") == "resnet":
        stride = 4 * 2 ** max(len(known["resnet_layers"]) - 1, 0)
    for count in _prefixes(inferred, known):
        side = inferred.square_of(inferred.table[1] - count)
        sizes[count] = (side * height * stride, side * width * stride) if side else None
    return sizes


def _fitting(inferred: Inferred, known: Mapping[str, Any], size: Any) -> ViTConfig | None:
    """Config for that stored image size, if its grid fits the table."""
    assert inferred.table is not None
    for count, prefix in _prefixes(inferred, known).items():
        try:
            config = ViTConfig(**known, image_size=size, position_prefix=cast(Any, prefix))
        except ConfigError as error:
            if "image_size" in str(error):
                return None
            raise WeightsError(f"the tensors describe no model: {error}") from error
        if inferred.rows_of(config.grid) + count == inferred.table[1]:
            return config
    return None


def _build(known: Mapping[str, Any]) -> ViTConfig:
    try:
        return ViTConfig(**known)
    except ConfigError as error:
        raise WeightsError(f"the tensors describe no model: {error}") from error


def _no_grid(
    inferred: Inferred, known: Mapping[str, Any], stored_image_size: Size | None
) -> WeightsError:
    assert inferred.table is not None
    name, rows = inferred.table
    side = math.isqrt(max(rows - 1, 0))
    if not known["class_token"] and side * side == rows - 1:
        return WeightsError(
            f"tensor {inferred.class_token_name!r} (1, 1, {known['width']}) is missing: "
            f"{name!r} has {rows} rows, one more than {side} x {side}"
        )
    if stored_image_size is not None:
        return WeightsError(
            f"stored_image_size={stored_image_size} does not give the {rows} rows of {name!r} "
            f"with patches of {known['patch_size']}"
        )
    return WeightsError(
        f"the {rows} rows of {name!r} form no square grid; "
        f"pass stored_image_size=(H, W), the image size of these weights"
    )


FREE = {
    "dropout",
    "attention_dropout",
    "drop_path",
    "dynamic_size",
    "position_resize",
    "position_std",
    "attention",
    "window_size",
    "zero_init_residual",
    "relative_local",
}
"""Fields that change a model's behaviour and none of its tensors."""
ADAPTED = {"image_size", "classes", "channels", "head", "representation_size"}
"""Fields whose tensors are adapted on a change."""
IDENTITY = ("width", "depth", "mlp_width", "patch_size")
"""Fields that show whether a config file describes these tensors."""
ROTARY = ("rope", "rope_form", "rope_theta", "rope_periods", "position_grid")
"""Fields of rotary positions, which have no tensors."""
UNUSED_IN_EVAL = ("dropout", "attention_dropout")


def check_keywords(changes: Mapping[str, Any]) -> None:
    """Raise for an unknown keyword, with near matches."""
    known = [field.name for field in fields(ViTConfig)]
    for name in changes:
        if name not in known:
            raise UnknownName("keyword", name, known)


def check_known(config: ViTConfig, changes: Mapping[str, Any], *, fixed_pool: bool) -> None:
    """Raise for a keyword that contradicts known values of the file."""
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
    """Config of a foreign file as saved, before any adaptation.

    `architecture` completes `beside` if a config file names an architecture.
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
    known |= {name: given[name] for name in ROTARY if name in given and name not in decided}
    known |= _heads(inferred, given, assumed)
    stored = with_positions(inferred, known, beside, changes, stored_image_size, assumed)
    check_known(stored.config, changes, fixed_pool="pool" in decided)
    return stored


def _related(
    beside: Mapping[str, Any], decided: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """Config file fields, unless they contradict the tensors and describe another model."""
    for name in IDENTITY:
        if name == "patch_size" and decided.get("stem") == "resnet":
            continue
        if name in beside and plain_size(beside[name]) != plain_size(decided[name]):
            note = f"config.json is of another model ({name} {beside[name]}, not {decided[name]})"
            return {}, [note]
    return beside, []


def _check_agreement(beside: Mapping[str, Any], decided: Mapping[str, Any]) -> None:
    """Raise if a config file and the tensors of the same model disagree."""
    for name in sorted(beside.keys() & decided.keys() - {*ADAPTED - {"channels"}, *IDENTITY}):
        found, stated = decided[name], beside[name]
        present = name == "layer_scale" and None not in (found, stated)
        if stated != found and not present:
            raise WeightsError(
                f"the config file says {name}={stated!r}, but the tensors say {found!r}"
            )


def _heads(inferred: Inferred, given: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Heads and head width; most tensors show only their product."""
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
                f"the tensors do not determine the number of heads, and {inner} is not a multiple "
                f"of head width {head_width}; pass heads=..."
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
