"""`load_text`: the text tower that lies in a file beside the image tower."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitlab.errors import ConfigError, WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.text import TextTower
from vitlab.weights.container import TensorFile, open_weights
from vitlab.weights.formats import text_huggingface, text_open_clip
from vitlab.weights.formats.rules import check_blocks, check_shapes, converted, expected_shapes
from vitlab.weights.formats.text_rules import TextLayout, meta_text_tower, text_shapes
from vitlab.weights.reading import naming, read_json
from vitlab.weights.source import WeightSource

log = logging.getLogger(__name__)

LAYOUTS = (text_huggingface.LAYOUT, text_open_clip.LAYOUT)
IMAGE = ("vision_model.", "visual.")
"""Prefixes of the image tower's tensors, some of which it leaves out, such as a mask token."""
WHOLE = (
    "valid: the weights of a whole CLIP or SigLIP, image and text, as transformers, OpenCLIP and "
    "OpenAI publish them"
)


def load_text(source: WeightSource, image: ViTConfig) -> TextTower:
    """Text tower of the file that an image tower was loaded from, in float32 and eval mode.

    Strict in both directions, as `load_weights` is: every tensor that the image tower left must
    belong to the text tower. Logs one warning with the values that nothing decides.
    """
    if not source.ignored or not source.path.exists():
        raise WeightsError(f"{source.path}: no text tower in it; {WHOLE}")
    file = open_weights(source.path)
    try:
        with naming(file.path):
            return _load(file, source, image)
    finally:
        file.close()


def text_config_file(source: WeightSource, name: str) -> dict[str, Any] | None:
    """Content of a config file beside the weights; None if there is none."""
    path = source.path.parent / name
    return read_json(path) if path.is_file() else None


def _load(file: TensorFile, source: WeightSource, image: ViTConfig) -> TextTower:
    left = {name for name in source.ignored if not name.startswith(IMAGE)}
    shapes = {name: shape for name, shape in file.shapes.items() if name in left}
    layout = _recognise(shapes, file.path)
    found = layout.infer(shapes, text_config_file(source, layout.config_file), image)
    config = found.config
    if config.embedding is not None and config.embedding != image.representation:
        raise WeightsError(
            f"{config.embedding} numbers in the embedding of a text, {image.representation} in "
            f"that of an image; valid: towers of one model"
        )
    check_blocks(config.depth, shapes, file=str(file.path))
    rules = layout.rules(config, found.dialect)
    expected = expected_shapes(rules, text_shapes(config))
    check_shapes(shapes, expected, file=str(file.path), ignored=found.ignored)
    tower = meta_text_tower(config)
    state = {
        name: tensor.to(torch.float32).contiguous() for name, tensor in converted(rules, file.read)
    }
    tower.load_state_dict(state, strict=True, assign=True)
    if found.assumed:
        log.warning(
            "%s: assumed %s; to change it, put the publisher's %s beside the file",
            file.path,
            ", ".join(found.assumed),
            layout.config_file,
        )
    return tower.eval().requires_grad_(False)


def _recognise(shapes: Mapping[str, Any], path: Path) -> TextLayout:
    """Format of the tensors that the image tower left."""
    for layout in LAYOUTS:
        if layout.recognise(shapes):
            return layout
    towers = ("text.", "text_model.", "transformer.")
    other = next((name for name in shapes if name.startswith(towers)), None)
    if other is not None:
        raise ConfigError(
            f"{path}: a text tower of another kind, by tensor {other!r}; valid: those of CLIP and "
            f"SigLIP"
        )
    raise WeightsError(f"{path}: no text tower in it; {WHOLE}")
