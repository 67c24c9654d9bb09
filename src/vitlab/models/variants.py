"""Models by name: configs of the CNN baselines, a table of named configs, and `create_model`.

A name such as `vit_b16_384_gap` is parsed; torch is imported only to build a model.
"""

import logging
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError, UnknownName
from vitlab.models.config import Size, ViTConfig, check_limits, pair
from vitlab.registry import VARIANTS, resolve_entry

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from torch import nn

# Configs of the CNN baselines; like `ViTConfig`, they name a model without importing torch.


Family = Literal["cifar", "bit"]
SMALLEST_TUTORIAL_IMAGE = 16
"""Smallest image that the tutorial's convolutions and pools do not reduce to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TutorialCNNConfig:
    """The small network of the PyTorch CIFAR-10 tutorial."""

    image_size: Size = 32
    channels: int = 3
    classes: int = 10
    """Outputs of the head; 0 leaves the head out and the model returns its representation."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if min(pair(self.image_size)) < SMALLEST_TUTORIAL_IMAGE:
            raise ConfigError(
                f"image_size {self.image_size} is not at least {SMALLEST_TUTORIAL_IMAGE}"
            )

    @property
    def blocks(self) -> int:
        """Number of layers with weights, without the head."""
        return 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetConfig:
    """A residual network: for 32x32 images, or BiT's."""

    family: Family
    """`cifar`: basic blocks, BatchNorm, no pooling before the last stage (arXiv:1512.03385).
    `bit`: pre-activation bottlenecks, GroupNorm, standardised weights (arXiv:1912.11370)."""
    layers: tuple[int, ...]
    """Blocks in each stage; each stage after the first halves the map and doubles the width."""
    width: int = 64
    """Channels of the first convolution and of the first stage's blocks."""
    image_size: Size = 224
    """Size the model is designed for; any other works, as the last map is averaged."""
    channels: int = 3
    classes: int = 1000
    """Outputs of the head; 0 leaves the head out and the model returns its representation."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.family not in get_args(Family):
            raise UnknownName("family", str(self.family), get_args(Family))
        if not self.layers or min(self.layers) < 1:
            raise ConfigError(
                f"layers {self.layers} needs one stage or more, each of 1 block or more"
            )
        check_limits(depth=self.blocks, width=self.width << min(len(self.layers), 64))
        multiple = 32 if self.family == "bit" else 1
        if self.width < 1 or self.width % multiple:
            raise ConfigError(f"width {self.width} is not a positive multiple of {multiple}")

    @property
    def blocks(self) -> int:
        """Number of residual blocks, each with its own tensors."""
        return sum(self.layers)


def _check_numbers(config: TutorialCNNConfig | ResNetConfig) -> None:
    if min(pair(config.image_size)) < 1:
        raise ConfigError(f"image_size {config.image_size} is not at least 1")
    if config.channels < 1:
        raise ConfigError(f"channels {config.channels} is not at least 1")
    if config.classes < 0:
        raise ConfigError(f"classes {config.classes} is negative")
    check_limits(
        image_size=max(pair(config.image_size)), channels=config.channels, classes=config.classes
    )


ModelConfig = ViTConfig | ResNetConfig | TutorialCNNConfig

SIZES: dict[str, dict[str, Any]] = {
    "ti": {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768},
    "s": {"width": 384, "depth": 12, "heads": 6, "mlp_width": 1536},
    "b": {"width": 768, "depth": 12, "heads": 12, "mlp_width": 3072},
    "l": {"width": 1024, "depth": 24, "heads": 16, "mlp_width": 4096},
    "h": {"width": 1280, "depth": 32, "heads": 16, "mlp_width": 5120},
}
"""Table 1 of the paper; Ti and S as in the original's code."""

PLAIN = {"ti": (16,), "s": (14, 16, 32), "b": (8, 14, 16, 32), "l": (14, 16, 32), "h": (14,)}
"""Patch sizes of each model size."""

# The number is the total reduction of ResNet and patch; R+Ti/16 actually divides by 32, because its
# root divides by 4 and its patches have 8 pixels a side.
HYBRIDS: dict[str, dict[str, Any]] = {
    "r_ti16": {"patch_size": 8, "resnet_layers": ()},
    "r26_s32": {"patch_size": 1, "resnet_layers": (2, 2, 2, 2)},
    "r26_b32": {"patch_size": 1, "resnet_layers": (2, 2, 2, 2)},
    "r50_b16": {"patch_size": 1, "resnet_layers": (3, 4, 9)},
    "r50_b32": {"patch_size": 1, "resnet_layers": (3, 4, 6, 3)},
    "r50_l16": {"patch_size": 1, "resnet_layers": (3, 4, 9)},
    "r50_l32": {"patch_size": 1, "resnet_layers": (3, 4, 6, 3)},
}

CIFAR: dict[str, Any] = {"image_size": 32, "patch_size": 4, "classes": 10}
"""Shared settings of the models for 32x32 images."""

LEAN_TOKENIZER: dict[str, Any] = {
    "stem": "conv",
    "conv_widths": (24, 48, 64, 96),
    "conv_strides": (1, 2, 1, 2, 1),
    "conv_downsample": "pool",
    "conv_pool_at": "before",
    "conv_norm": "batch",
    "conv_activation": "gelu",
}
"""Convolutions that leave most of the work to the encoder."""


def _table() -> dict[str, ModelConfig]:
    table: dict[str, ModelConfig] = {}
    for size, patches in PLAIN.items():
        for patch in patches:
            table[f"vit_{size}{patch}"] = ViTConfig(**SIZES[size], patch_size=patch)
    for name, stem in HYBRIDS.items():
        size = re.sub(r"\d+$", "", name.split("_")[1])
        table[f"vit_{name}"] = ViTConfig(**SIZES[size], **stem, stem="resnet")
    small: dict[str, Any] = {"width": 192, "depth": 9, "heads": 3, "mlp_width": 768}
    table |= {
        "vit_cifar": ViTConfig(
            width=128,
            depth=6,
            heads=8,
            mlp_width=512,
            mlp_activation="relu2",
            norm_bias=False,
            qk_norm=True,
            position="relative_bias",
            relative_local=1.5,
            pool_after=2,
            branch_norm=0.2,
            **CIFAR,
            **LEAN_TOKENIZER,
            class_token=False,
            pool="mean",
        ),
        "vit_cifar_pure": ViTConfig(**small, **CIFAR),
        "vit_plain": ViTConfig(width=96, depth=6, heads=3, mlp_width=384, **CIFAR),
        "vit_cifar_hybrid": ViTConfig(**small | {"depth": 6}, **CIFAR, stem="conv"),
        "vit_cifar_lite": ViTConfig(width=256, depth=7, heads=4, mlp_width=512, **CIFAR),
        "vit_cifar_spt": ViTConfig(
            width=192, depth=9, heads=12, mlp_width=384, **CIFAR, stem="shifted", attention="lsa"
        ),
        "vit_seed": ViTConfig(
            **SIZES["b"] | {"depth": 1},
            **CIFAR | {"patch_size": 16},
            patch_norm="after",
            qkv_bias=False,
            proj_bias=False,
        ),
        "vit_test": ViTConfig(
            width=32, depth=2, heads=2, mlp_width=64, **CIFAR | {"patch_size": 8}
        ),
        "cnn_tutorial": TutorialCNNConfig(),
        "resnet18_cifar": ResNetConfig(
            family="cifar", layers=(2, 2, 2, 2), image_size=32, classes=10
        ),
        "resnet50_bit": ResNetConfig(family="bit", layers=(3, 4, 6, 3)),
    }
    return table


TABLE = _table()

LISTED_SUFFIXES = {
    "_384": ("ti16", "s16", "s32", "b16", "b32", "l16", "l32", *HYBRIDS),
    "_gap": ("s16", "s32", "b16", "b32"),
}
"""Suffixed names with published weights; the parser accepts the suffixes on any other name too."""


def variants() -> list[str]:
    """Names of all models, including registered ones."""
    suffixed = [
        f"vit_{base}{suffix}" for suffix, bases in LISTED_SUFFIXES.items() for base in bases
    ]
    return [*TABLE, *suffixed, *VARIANTS]


def built_in(name: str) -> re.Match[str] | None:
    """Parts of a built-in name, None for any other."""
    match = re.fullmatch(r"(?P<base>\w+?)(_(?P<size>[1-9]\d{1,3}))?(?P<gap>_gap)?", name)
    return match if match and match["base"] in TABLE else None


def variant(name: str) -> ModelConfig:
    """Configuration of a name: `BASE[_SIZE][_gap]`, or timm's."""
    if name in VARIANTS:
        return VARIANTS[name]
    match = built_in(our_name(name))
    if match is None:
        raise UnknownName("model", name, variants())
    config = TABLE[match["base"]]
    if match["size"]:
        config = replace(config, image_size=int(match["size"]))
    if match["gap"]:
        if not isinstance(config, ViTConfig):
            raise ConfigError(f"model {name!r}: _gap is for Vision Transformers")
        config = replace(config, class_token=False, pool="mean")
    return config


MODELS: dict[type[ModelConfig], str] = {
    ViTConfig: "vitlab.models.vit:VisionTransformer",
    ResNetConfig: "vitlab.models.cnn:ResNet",
    TutorialCNNConfig: "vitlab.models.cnn:TutorialCNN",
}
"""Class of the model of each type of config; imported, with torch, when a model is built."""


TIMM = re.compile(
    r"(?P<family>vit|deit|deit3)_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d+)"
    r"(?P<gap>_gap)?_(?P<pixels>\d+)(\.(?P<tag>\w+))?"
)
TIMM_SIZES = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimmName:
    """Parts of a name of timm, such as deit_small_patch16_224.fb_in1k."""

    family: str
    """`vit`, `deit` or `deit3`."""
    model: str
    """Our name of the model."""
    tag: str | None
    """Word after the dot, which names weights."""


def parse_timm(name: str) -> TimmName | None:
    """Parts of a name of timm; None for any other name."""
    found = TIMM.fullmatch(name)
    if found is None or name in VARIANTS:
        return None
    pixels = "" if found["pixels"] == "224" else f"_{found['pixels']}"
    model = f"vit_{TIMM_SIZES[found['size']]}{found['patch']}{pixels}{found['gap'] or ''}"
    return TimmName(family=found["family"], model=model, tag=found["tag"])


def our_name(name: str) -> str:
    """Our name of a model that has timm's, such as vit_base_patch16_224; others unchanged."""
    parts = parse_timm(name)
    # The blocks of DeiT III have scales that the plain model of that size lacks.
    return name if parts is None or parts.family == "deit3" else parts.model


def known_name(name: str) -> str:
    """Our name of a model that may have timm's; the log says so."""
    ours = our_name(name)
    if ours != name:
        log.warning("%s is %s here", name, ours)
    return ours


def configure(config: str | ModelConfig, **changes: Any) -> ModelConfig:
    """Configuration of a named model, with some fields changed."""
    base = variant(known_name(config)) if isinstance(config, str) else config
    return from_dict(type(base), {**to_dict(base), **changes}) if changes else base


def create_model(config: str | ModelConfig, **changes: Any) -> "nn.Module":
    """Build a model with freshly initialised weights."""
    config = configure(config, **changes)
    model: nn.Module = resolve_entry(MODELS[type(config)])(config)
    return model


FREE = {
    *("classes", "image_size", "channels", "dropout", "attention_dropout", "drop_path"),
    *("norm_eps", "gelu", "position_resize", "dynamic_size"),
}
"""Fields in which a model may differ from the variant whose name it has."""


def variant_name(config: ModelConfig) -> str | None:
    """Name of the variant with this shape, for any input size and number of classes."""
    return next((name for name in variants() if _same_shape(config, variant(name))), None)


def _same_shape(config: ModelConfig, other: ModelConfig) -> bool:
    return type(config) is type(other) and all(
        getattr(config, field.name) == getattr(other, field.name)
        for field in fields(config)
        if field.name not in FREE
    )
