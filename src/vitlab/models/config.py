"""`ViTConfig`: one frozen description of every member of the family (arXiv:2010.11929, table 1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin

from vitlab.errors import ConfigError, UnknownName
from vitlab.registry import ATTENTIONS, POSITIONS, STEMS

Size = int | tuple[int, int]
MOST_WEIGHTS = 1 << 40
"""Maximum number of weights in the patch projection."""
DEEPEST, WIDEST, LARGEST_SIDE = 1000, 1 << 20, 1 << 16
"""Maximum number of blocks, channels of a layer, and pixels of a side; more is a mistake."""
IN_ATTENTION = ("relative", "relative_bias", "rope")
"""Positions that act on queries, keys or scores; all others are added to the tokens."""


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """`(height, width)` of a size given as one number or two, such as the list of a JSON file."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig:
    """Every setting of a ViT's architecture, and none of its training."""

    width: int
    depth: int
    """Encoder blocks; 0 leaves the stem, pooling and the head: a control without attention."""
    heads: int
    mlp_width: int
    patch_size: Size
    """Side of a patch, or (height, width); of the stem's feature map where the stem is a ResNet."""
    image_size: Size = 224
    channels: int = 3
    classes: int = 1000
    """Outputs of the head; 0 leaves the head out and the model returns its representation."""
    head_width: int | None = None
    """Width of a query, key or value of one head; None: width / heads."""

    stem: str = "patch"
    """`patch`, `resnet` (the hybrid), `conv` (CCT), `shifted` (SPT), or a registered name."""
    resnet_layers: tuple[int, ...] = ()
    """Blocks in each stage of the hybrid's ResNet; empty: its root alone."""
    resnet_width: int = 64
    resnet_norm_eps: float = 1e-6
    resnet_std_eps: float = 1e-5
    resnet_std_eps_at: Literal["std", "variance"] = "std"
    """Weight standardisation divides by std + eps (the original) or sqrt(variance + eps) (timm)."""
    conv_strides: tuple[int, ...] = (2, 2)
    """One convolution of the tokenizer per entry; the product is the patch size."""
    conv_widths: tuple[int, ...] = (64,)
    """Channels of every convolution but the last, which has `width`."""
    conv_downsample: Literal["pool", "stride"] = "pool"
    """A stride is a max-pool behind the convolution (CCT) or the convolution's own."""
    conv_pool_at: Literal["after", "before"] = "after"
    """The max-pool overlaps, behind the activation (CCT), or has its stride's size, before norm."""
    conv_norm: Literal["none", "batch"] = "none"
    conv_activation: Literal["relu", "gelu"] = "relu"
    patch_norm: Literal["none", "after", "both"] = "none"
    """Norm behind the patch projection, or before and behind it."""
    patch_bias: bool = True
    """The patch projection has a bias."""
    embed_norm: bool = False
    """Norm of the tokens before the first block (CLIP)."""

    position: str = "learned1d"
    """`none learned1d learned2d sincos2d conditional relative relative_bias rope` or your own."""
    position_at: Literal["stem", "every_layer", "shared_layers"] = "stem"
    position_prefix: Literal["cls", "all", "none"] = "cls"
    """Prefix tokens with an entry in a learned table: DINOv2 cls, timm all, DeiT-III none."""
    position_grid: tuple[int, int] | None = None
    """Grid over which sincos2d and rope spread their coordinates; None: that of `image_size`."""
    position_resize: Literal["bicubic", "zoom"] = "bicubic"
    """Resampling of a table to a new grid: antialiased bicubic, or the original's order-1 zoom."""
    position_std: float | None = None
    """Deviation of the random numbers of `learned1d` and `learned2d` at the start; None: 0.02.

    Sines and cosines have 0.71.
    """
    rope: bool = False
    """Rotary positions besides those of `position`."""
    rope_theta: float = 100.0
    rope_form: Literal["axial", "eva", "pe", "dinov3", "mixed"] = "axial"
    """Coordinates and channels of rotary positions: those of arXiv:2403.13298 or of a family;
    `mixed` learns the frequencies of each head."""
    rope_periods: tuple[float, ...] | None = None
    """Periods of rotary positions as stored with weights; None: those of `rope_theta`."""
    relative_table: Literal["none", "blocks", "shared"] = "none"
    """Relative positions of BEiT besides `position`: a table in each block, or one for all."""
    relative_local: float = 0.0
    """`relative_bias` starts at minus this times the squared distance to a neighbour per head."""
    dynamic_size: bool = False
    """Accept images of other sizes and resize the positions on the fly."""

    class_token: bool = True
    registers: int = 0
    pool: Literal["cls", "mean", "mean_all", "map", "map_patches", "cls_mean", "cls_dist"] = "cls"
    """Class token, mean of the patches, mean of all tokens, or attention pooling (big_vision) of
    all tokens or of the patches; class token beside the mean of the patches, or beside the
    distillation token (the first register), for which the head has a linear layer of its own."""
    pool_heads: int | None = None
    """Heads of attention pooling; None: `heads`."""
    pool_mlp_width: int | None = None
    """Width of the MLP of attention pooling; None: `mlp_width`."""
    unit_norm: bool = False
    """Scale the input of the head's last layer to length one: logits are cosine similarities."""
    head: Literal["linear", "mlp", "projection"] = "linear"
    """`mlp` is Linear-tanh-Linear, as in the paper's pre-training; `projection` a matrix without
    bias and a linear layer (CLIP)."""
    representation_size: int | None = None
    """Hidden width of an `mlp` or `projection` head; None: width."""

    norm: Literal["pre", "post", "res_post"] = "pre"
    """Norm before a branch (the paper), after the sum, or at the end of the branch."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm (arXiv:1910.07467), which has no bias."""
    norm_eps: float = 1e-6
    norm_at: Literal["tokens", "pooled", "none"] = "tokens"
    """The last norm comes before pooling (the paper), after it (timm's fc_norm), or is absent."""
    norm_bias: bool = True
    """False: no LayerNorm of the blocks but those of queries and keys, nor the last, has a bias
    (ViT-22B, arXiv:2302.05442)."""
    attention: str = "full"
    """`full lsa sliding axial sparse mean` or a registered name; `mean` weighs all tokens alike."""
    window_size: int = 7
    """Side of a `sliding` neighbourhood in patches; window and stride of `sparse` attention."""
    mlp_activation: Literal["gelu", "relu2", "swiglu"] = "gelu"
    """`relu2` is the square of ReLU (arXiv:2109.08668), `swiglu` a gated MLP (arXiv:2002.05202)."""
    gelu: Literal["erf", "tanh", "quick"] = "erf"
    """`quick` is x sigmoid(1.702 x), as in OpenAI's CLIP."""
    mlp_bias: bool = True
    mlp_norm: bool = False
    """Norm inside the MLP, before its last layer (EVA-02)."""
    qkv_bias: bool = True
    key_bias: bool = True
    """False: of queries, keys and values, the keys have no bias (BEiT, DINOv3)."""
    proj: bool = True
    """Project the concatenated heads; without it heads x head_width must equal width."""
    proj_bias: bool = True
    qk_norm: bool = False
    attention_norm: bool = False
    """Norm of the concatenated heads before their projection (EVA-02-CLIP)."""
    layer_scale: float | None = None
    """Initial value of LayerScale; None: no LayerScale."""
    branch_norm: float | None = None
    """Initial factor of a LayerNorm of what a branch adds (arXiv:2105.13290); None: none."""
    pool_after: int | None = None
    """Blocks after which each 2x2 patches are averaged into one; None: the grid stays."""
    zero_init_residual: bool = False
    """The projections that end attention and MLP start at zero: a pre-norm block as identity."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    """Stochastic depth: probability at the last block, growing linearly from 0 at the first, and
    therefore 0 in a single block.
    """

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_limits(self)
        _check_names(self)
        _check_stem(self)
        _check_tokens(self)
        _check_attention(self)
        _check_branches(self)

    @property
    def blocks(self) -> int:
        """Number of blocks and convolutions, each with its own tensors."""
        stem = {"resnet": sum(self.resnet_layers), "conv": len(self.conv_strides)}
        return self.depth + stem.get(self.stem, 0)

    @property
    def key_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.grid_for(self.image_size)

    def grid_for(self, image_size: Size) -> tuple[int, int]:
        """Rows and columns of patches of an image of `image_size`."""
        feature_map = pair(image_size)
        if self.stem == "resnet":
            feature_map = resnet_map(feature_map, len(self.resnet_layers))
        sides = tuple(zip(("height", "width"), feature_map, pair(self.patch_size), strict=True))
        for side, size, patch in sides:
            if size < patch or size % patch:
                of = "" if self.stem != "resnet" else f" (feature map {side} {size})"
                raise ConfigError(
                    f"image_size {image_size}: {side}{of} is not a multiple of "
                    f"patch_size {self.patch_size}"
                )
        rows, columns = (size // patch for _, size, patch in sides)
        if self.pool_after is not None and (rows % 2 or columns % 2):
            raise ConfigError(
                f"image_size {image_size}: the grid of {rows}x{columns} patches is not even in "
                f"both directions, which pool_after {self.pool_after} needs"
            )
        return rows, columns

    def grid_at(self, layer: int) -> tuple[int, int]:
        """Rows and columns of patches at block `layer`."""
        rows, columns = self.grid
        pooled = self.pool_after is not None and layer >= self.pool_after
        return (rows // 2, columns // 2) if pooled else (rows, columns)

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return int(self.class_token) + self.registers

    @property
    def rotary(self) -> bool:
        """True if queries and keys are rotated by their position."""
        return self.rope or self.position == "rope"

    @property
    def positioned_prefix(self) -> int:
        """Number of prefix tokens that have an entry in a learned position table."""
        counts = {"cls": int(self.class_token), "all": self.prefix, "none": 0}
        return counts[self.position_prefix]

    @property
    def tokens(self) -> int:
        """Length of the sequence that enters the encoder."""
        return self.tokens_at(0)

    def tokens_at(self, layer: int) -> int:
        """Length of the sequence at block `layer`."""
        rows, columns = self.grid_at(layer)
        return self.prefix + rows * columns

    @property
    def attention_pool(self) -> bool:
        """True if a learned query pools the tokens."""
        return self.pool in ("map", "map_patches")

    @property
    def pooled_width(self) -> int:
        """Width of the pooled vector."""
        return 2 * self.width if self.pool in ("cls_mean", "cls_dist") else self.width

    @property
    def representation(self) -> int:
        """Input width of the last linear layer."""
        if self.head == "linear" or self.representation_size is None:
            return self.pooled_width
        return self.representation_size


def resnet_map(size: tuple[int, int], stages: int) -> tuple[int, int]:
    """Feature map of the hybrid's ResNet: root, pool and each further stage halve it."""
    height, width = size
    for _ in range(2 + max(stages - 1, 0)):
        height, width = -(-height // 2), -(-width // 2)
    return height, width


def check_limits(**sizes: int) -> None:
    """Raise for sizes beyond the limits: building them would take for ever, or overflow."""
    limits = {"depth": DEEPEST, "image_size": LARGEST_SIDE, "patch_size": LARGEST_SIDE}
    for name, size in sizes.items():
        if size > limits.get(name, WIDEST):
            raise ConfigError(f"{name} {size}; valid: at most {limits.get(name, WIDEST)}")


def _check_limits(config: ViTConfig) -> None:
    names = ("width", "mlp_width", "heads", "channels", "classes", "registers", "window_size")
    check_limits(
        depth=config.depth,
        image_size=max(pair(config.image_size)),
        patch_size=max(pair(config.patch_size)),
        position_grid=max(config.position_grid or (1,)),
        representation_size=config.representation_size or 0,
        pool_heads=config.pool_heads or 0,
        pool_mlp_width=config.pool_mlp_width or 0,
        head_width=config.head_width or 0,
        conv_widths=max(config.conv_widths, default=0),
        conv_strides=len(config.conv_strides),
        **{name: getattr(config, name) for name in names},
    )
    check_limits(depth=sum(config.resnet_layers))
    check_limits(resnet_width=config.resnet_width << min(len(config.resnet_layers), 64))
    if config.heads * (config.head_width or 1) > WIDEST:
        raise ConfigError(
            f"heads {config.heads} x head_width {config.head_width}; valid: at most {WIDEST}"
        )
    height, width = pair(config.patch_size)
    if config.width * config.channels * height * width > MOST_WEIGHTS:
        raise ConfigError(
            f"width {config.width} x channels {config.channels} x patch_size "
            f"{config.patch_size}; valid: at most {MOST_WEIGHTS} weights"
        )


def _check_numbers(config: ViTConfig) -> None:
    for name in ("width", "heads", "mlp_width", "channels", "resnet_width"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} {getattr(config, name)} is not at least 1")
    for name in ("depth", "classes", "registers", "relative_local"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name} {getattr(config, name)} is negative")
    for name in ("image_size", "patch_size", "position_grid"):
        size = getattr(config, name)
        if size is not None and min(pair(size)) < 1:
            raise ConfigError(f"{name} {size} is not at least 1")
    for name in ("resnet_layers", "conv_strides", "conv_widths"):
        if min(getattr(config, name), default=1) < 1:
            raise ConfigError(f"{name} {getattr(config, name)} has an entry below 1")
    for name in ("dropout", "attention_dropout", "drop_path"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ConfigError(f"{name} {getattr(config, name)} is not in [0, 1)")
    for name in ("norm_eps", "resnet_norm_eps", "resnet_std_eps", "rope_theta"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} {getattr(config, name)} is not positive")


def _check_names(config: ViTConfig) -> None:
    for kind, registry in (("stem", STEMS), ("position", POSITIONS), ("attention", ATTENTIONS)):
        if getattr(config, kind) not in registry:
            raise UnknownName(kind, getattr(config, kind), registry)
    for field in fields(config):
        choices = get_args(field.type)
        if get_origin(field.type) is Literal and getattr(config, field.name) not in choices:
            raise UnknownName(field.name, str(getattr(config, field.name)), choices)


def _check_stem(config: ViTConfig) -> None:
    config.grid_for(config.image_size)
    if config.stem == "conv":
        if len(config.conv_widths) != len(config.conv_strides) - 1:
            raise ConfigError(
                f"conv_widths {config.conv_widths} needs one entry fewer than "
                f"conv_strides {config.conv_strides}: the last convolution has `width`"
            )
        if pair(config.patch_size) != (math.prod(config.conv_strides),) * 2:
            raise ConfigError(
                f"patch_size {config.patch_size} is not the product of "
                f"conv_strides {config.conv_strides}"
            )
        if config.conv_pool_at == "before" and config.conv_downsample != "pool":
            raise ConfigError(
                f"conv_pool_at 'before' needs conv_downsample 'pool', "
                f"not {config.conv_downsample!r}"
            )
    if config.stem == "resnet" and config.resnet_width % 32:
        raise ConfigError(f"resnet_width {config.resnet_width} is not a multiple of 32 (GroupNorm)")
    for name, value in (("patch_bias", False), ("norm_kind", "rms")):
        if getattr(config, name) == value and config.stem != "patch":
            raise ConfigError(f"{name}={value!r} needs stem 'patch', not {config.stem!r}")
    if config.patch_norm == "both" and config.stem not in ("patch", "shifted"):
        raise ConfigError(f"patch_norm 'both' needs stem 'patch' or 'shifted', not {config.stem!r}")


def _check_tokens(config: ViTConfig) -> None:
    if config.pool.startswith("cls") and not config.class_token:
        raise ConfigError(
            f"pool {config.pool!r} needs class_token=True; valid without one: mean, mean_all, map, "
            f"map_patches"
        )
    _check_pool(config)
    if config.head == "linear" and config.representation_size is not None:
        raise ConfigError(
            f"representation_size {config.representation_size} needs head='mlp' or 'projection'"
        )
    if config.representation < 1:
        raise ConfigError(f"representation_size {config.representation} is not at least 1")
    if config.norm_at == "pooled" and (
        config.norm == "post" or config.pool not in ("cls", "mean", "mean_all")
    ):
        raise ConfigError(
            "norm_at 'pooled' needs norm='pre' or 'res_post', and pool cls, mean or mean_all"
        )
    if config.position_at != "stem" and config.position in ("none", *IN_ATTENTION):
        raise ConfigError(
            f"position_at {config.position_at!r} needs an additive position "
            f"(learned1d, learned2d, sincos2d, conditional), not {config.position!r}"
        )
    if config.pool_after is not None:
        _check_pool_after(config, config.pool_after)
    if config.relative_local and config.position != "relative_bias":
        raise ConfigError(
            f"relative_local {config.relative_local} needs position 'relative_bias', which has a "
            f"table per head, not {config.position!r}"
        )
    if config.position_std is not None and not config.position_std > 0:
        raise ConfigError(f"position_std {config.position_std} is not positive")
    if config.position_std is not None and config.position not in ("learned1d", "learned2d"):
        raise ConfigError(
            f"position_std {config.position_std} needs position 'learned1d' or 'learned2d', "
            f"not {config.position!r}"
        )
    if config.position == "learned2d" and config.width % 2:
        raise ConfigError(f"position 'learned2d' needs an even width, not {config.width}")
    if config.position == "sincos2d" and config.width % 4:
        raise ConfigError(f"position 'sincos2d' needs a width divisible by 4, not {config.width}")
    if config.rope and config.position in IN_ATTENTION:
        raise ConfigError(
            f"rope=True with position {config.position!r}; valid: one that is added, or 'none'"
        )
    _check_rope(config)
    if config.relative_table != "none" and config.position in ("relative", "relative_bias"):
        raise ConfigError(
            f"relative_table {config.relative_table!r} with position {config.position!r}; valid: "
            f"one that is added, or 'none'"
        )
    if config.relative_table == "shared" and config.pool_after is not None:
        raise ConfigError("relative_table 'shared' with pool_after: one table fits one grid")


def _check_pool(config: ViTConfig) -> None:
    if config.pool == "cls_dist" and not config.registers:
        raise ConfigError("pool 'cls_dist' needs registers of 1 or more: the first is distilled")
    for name, value in (
        ("pool_heads", config.pool_heads),
        ("pool_mlp_width", config.pool_mlp_width),
    ):
        if value is not None and (value < 1 or not config.attention_pool):
            raise ConfigError(f"{name} {value} needs pool 'map' or 'map_patches', and at least 1")


def _check_rope(config: ViTConfig) -> None:
    if config.rotary and config.key_width % 4:
        raise ConfigError(
            f"position 'rope' needs a head width divisible by 4, not {config.key_width}"
        )
    periods = config.rope_periods
    if periods is None:
        return
    if not config.rotary or config.rope_form == "mixed":
        raise ConfigError("rope_periods need rotary positions whose rope_form is not 'mixed'")
    if len(periods) != config.key_width // 4 or not all(0 < p < math.inf for p in periods):
        raise ConfigError(
            f"rope_periods has {len(periods)} numbers; valid: {config.key_width // 4} positive ones"
        )


def _check_pool_after(config: ViTConfig, blocks: int) -> None:
    if not 1 <= blocks < config.depth:
        valid = f"1 to {config.depth - 1}" if config.depth > 1 else "None"
        raise ConfigError(f"pool_after {blocks}; valid with depth {config.depth}: {valid}")
    if config.position_at != "stem" and config.position != "conditional":
        raise ConfigError(
            f"pool_after {blocks} with position_at {config.position_at!r}: a table of "
            f"{config.position!r} fits one grid; valid: position_at 'stem', or 'conditional'"
        )


def _check_branches(config: ViTConfig) -> None:
    if config.branch_norm is None:
        return
    if config.branch_norm < 0:
        raise ConfigError(f"branch_norm {config.branch_norm} is negative")
    if config.layer_scale is not None:
        raise ConfigError(
            f"branch_norm {config.branch_norm} and layer_scale {config.layer_scale}: both scale "
            f"what a branch adds; valid: one of them"
        )
    if config.zero_init_residual:
        raise ConfigError(
            f"branch_norm {config.branch_norm} with zero_init_residual=True: a LayerNorm of "
            f"nothing; valid: zero_init_residual=False"
        )


def _check_attention(config: ViTConfig) -> None:
    if config.head_width is None and config.width % config.heads:
        raise ConfigError(f"width {config.width} does not split into {config.heads} heads")
    if config.attention_pool and config.width % (config.pool_heads or config.heads):
        raise ConfigError(
            f"width {config.width} does not split into {config.pool_heads or config.heads} heads "
            f"of attention pooling"
        )
    if config.key_width < 1:
        raise ConfigError(f"head_width {config.head_width} is not at least 1")
    if not config.proj and config.heads * config.key_width != config.width:
        raise ConfigError(
            f"proj=False needs heads x head_width = width, "
            f"found {config.heads} x {config.key_width} and {config.width}"
        )
    if not config.key_bias and not config.qkv_bias:
        raise ConfigError("key_bias=False needs qkv_bias=True: without it no key has a bias")
    if config.zero_init_residual and not config.proj:
        raise ConfigError(
            "zero_init_residual=True needs proj=True: without it no projection ends attention"
        )
    if config.attention == "sliding" and (config.window_size < 1 or config.window_size % 2 == 0):
        raise ConfigError(f"window_size {config.window_size} is not an odd positive number")
    if config.attention == "sparse" and config.window_size < 2:
        raise ConfigError(f"window_size {config.window_size} is not at least 2")
    if config.attention == "lsa" and config.tokens_at(config.depth - 1) < 2:
        raise ConfigError("attention 'lsa' masks a token's view of itself and needs 2 tokens")
