"""Which image size and which prefix a learned position table was stored for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from vitlab.errors import ConfigError, WeightsError
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.weights.layout import Inferred


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The model as stored, and what had to be assumed about it."""

    config: ViTConfig
    assumed: tuple[str, ...] = ()


def plain_size(value: Any) -> Any:
    """A size in its two spellings is one value."""
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
    if inferred.positions is None:
        return _without_table(known, beside, changes, stored_image_size, assumed)
    for position in (changes.get("position"), beside.get("position")):
        if position not in (None, "learned1d"):
            raise WeightsError(
                f"position={position!r} contradicts the tensors: "
                f"{inferred.positions[0]!r} is a learned table"
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
    position = changes.get("position", beside.get("position"))
    if position is None:
        raise WeightsError(
            "the position table is missing; if the model has none, say so: "
            "position='none', position='sincos2d' or position='rope'"
        )
    size = stored_image_size or beside.get("image_size") or changes.get("image_size")
    if size is None:
        size = 224
        assumed.append("image_size 224")
    config = _build({**known, "position": position, "image_size": plain_size(size)})
    return Resolved(config=config, assumed=tuple(assumed))


def _prefixes(inferred: Inferred, known: Mapping[str, Any]) -> dict[int, str]:
    """Rows of the table before the patches, for each `position_prefix` that they may mean."""
    tokens = int(known["class_token"])
    counts = {"cls": tokens, "all": tokens + known.get("registers", 0), "none": 0}
    readings: dict[int, str] = {}
    for name in inferred.prefixes:
        label = "cls" if counts[name] == counts["cls"] else name
        readings.setdefault(counts[name], label)
    return readings


def _square_sizes(inferred: Inferred, known: Mapping[str, Any]) -> dict[int, Size | None]:
    """For each number of rows before the patches, the most likely first: the image size whose
    patches form a square that fits the table, if there is one.
    """
    assert inferred.positions is not None
    sizes: dict[int, Size | None] = {}
    height, width = pair(known["patch_size"])
    stride = 1
    if known.get("stem") == "resnet":
        stride = 4 * 2 ** max(len(known["resnet_layers"]) - 1, 0)
    for count in _prefixes(inferred, known):
        patches = inferred.positions[1] - count
        side = math.isqrt(max(patches, 0))
        square = side > 0 and side * side == patches
        sizes[count] = (side * height * stride, side * width * stride) if square else None
    return sizes


def _fitting(inferred: Inferred, known: Mapping[str, Any], size: Any) -> ViTConfig | None:
    """The config for that stored image size, when its grid fits the table."""
    assert inferred.positions is not None
    for count, prefix in _prefixes(inferred, known).items():
        try:
            config = ViTConfig(**known, image_size=size, position_prefix=cast(Any, prefix))
        except ConfigError as error:
            if "image_size" in str(error):
                return None
            raise WeightsError(f"the tensors describe no model: {error}") from error
        rows, columns = config.grid
        if rows * columns + count == inferred.positions[1]:
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
    assert inferred.positions is not None
    name, rows = inferred.positions
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
