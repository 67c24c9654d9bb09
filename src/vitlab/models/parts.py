"""Parts of `vitlab.nn` for a `ViTConfig`: the implementations of the registered names.

A stem turns images [B, C, H, W] into a grid of tokens [B, h, w, D]. A position returns from
`position(grid)` a table to add, prefix entries first, or is a `Conditional`. An attention kind
returns a module with `forward(x, grid)` and `weights(x, grid)`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from vitlab.errors import ConfigError
from vitlab.models.config import ViTConfig, pair
from vitlab.nn.attention import SelfAttention
from vitlab.nn.attention_variants import VariantAttention, log_temperature
from vitlab.nn.encoder import Encoder, EncoderBlock, make_norm
from vitlab.nn.init import init_zero, position_table
from vitlab.nn.mlp import GatedMlp, Mlp
from vitlab.nn.patch_embed import ConvEmbed, HybridEmbed, PatchEmbed, ShiftedPatchEmbed
from vitlab.nn.pattern import Axial, Others, Pattern, Sliding, Sparse
from vitlab.nn.pool import AttentionPool, AveragedHeads, ClassToken, MeanPool
from vitlab.nn.pos_embed import (
    Conditional,
    Learned1d,
    Learned2d,
    OffsetBias,
    PrefixedOffsetBias,
    SinCos2d,
)
from vitlab.nn.resnet import ResNetTrunk
from vitlab.nn.rope import MixedRope, Rope
from vitlab.registry import ATTENTIONS, POSITIONS


def patch_stem(config: ViTConfig) -> nn.Module:
    return PatchEmbed(
        config.channels,
        config.width,
        patch_size=pair(config.patch_size),
        norm=config.patch_norm,
        norm_kind=config.norm_kind,
        norm_eps=config.norm_eps,
        bias=config.patch_bias,
    )


def shifted_stem(config: ViTConfig) -> nn.Module:
    return ShiftedPatchEmbed(
        config.channels,
        config.width,
        patch_size=pair(config.patch_size),
        norm="before" if config.patch_norm == "none" else "both",
        norm_eps=config.norm_eps,
    )


def resnet_stem(config: ViTConfig) -> nn.Module:
    resnet = ResNetTrunk(
        config.channels,
        layers=config.resnet_layers,
        width=config.resnet_width,
        norm_eps=config.resnet_norm_eps,
        std_eps=config.resnet_std_eps,
        std_eps_at=config.resnet_std_eps_at,
    )
    return HybridEmbed(
        resnet,
        config.width,
        patch_size=pair(config.patch_size),
        norm="none" if config.patch_norm == "none" else "after",
        norm_eps=config.norm_eps,
    )


def conv_stem(config: ViTConfig) -> nn.Module:
    return ConvEmbed(
        config.channels,
        config.width,
        widths=config.conv_widths,
        strides=config.conv_strides,
        downsample=config.conv_downsample,
        pool_at=config.conv_pool_at,
        norm=config.conv_norm,
        activation=config.conv_activation,
        norm_after=config.patch_norm == "after",
        norm_eps=config.norm_eps,
    )


def no_position(config: ViTConfig) -> None:
    """No added positions (relative and rotary positions act inside attention)."""


def learned1d_position(config: ViTConfig) -> nn.Module:
    return Learned1d(
        config.width,
        grid=config.grid,
        prefix=config.positioned_prefix,
        resize=config.position_resize,
        std=config.position_std,
    )


def learned2d_position(config: ViTConfig) -> nn.Module:
    return Learned2d(
        config.width,
        grid=config.grid,
        prefix=config.positioned_prefix,
        resize=config.position_resize,
        std=config.position_std,
    )


def sincos2d_position(config: ViTConfig) -> nn.Module:
    return SinCos2d(config.width, grid=config.position_grid or config.grid)


def conditional_position(config: ViTConfig) -> nn.Module:
    return Conditional(config.width, prefix=config.prefix)


def build_positions(config: ViTConfig) -> nn.ModuleList:
    """Added positions: none, one (at the stem or shared), or one per layer."""
    factory: Callable[[ViTConfig], nn.Module | None] = POSITIONS[config.position]
    count = config.depth if config.position_at == "every_layer" else 1
    tables = [factory(config) for _ in range(count)]
    return nn.ModuleList(table for table in tables if table is not None)


def self_attention(
    config: ViTConfig,
    pattern: Pattern | None = None,
    *,
    layer: int = 0,
    learned_temperature: bool = False,
    scale: float | None = None,
) -> SelfAttention:
    """Encoder attention restricted to `pattern`; also for custom kinds.

    Relative positions are created for the grid at block `layer`. `scale` multiplies the products of
    queries and keys; None: 1 / sqrt(head width), or learned.
    """
    offset_bias = _offset_bias(config, layer)
    plain = SelfAttention(
        config.width,
        heads=config.heads,
        head_width=config.key_width,
        qkv_bias=config.qkv_bias and config.key_bias,
        proj=config.proj,
        proj_bias=config.proj_bias,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
    inside = config.rotary or offset_bias is not None or config.position == "relative"
    inside = inside or not config.key_bias or scale is not None
    normed = config.qk_norm or config.attention_norm
    if pattern is None and not (inside or normed or learned_temperature):
        return plain
    attention = VariantAttention(
        plain,
        prefix=config.prefix,
        pattern=pattern,
        norms=_qk_norms(config) if config.qk_norm else None,
        norm=_attention_norm(config) if config.attention_norm else None,
        rope=_rope(config) if config.rotary else None,
        temperature=log_temperature(config.heads, config.key_width)
        if learned_temperature
        else None,
        offsets=_offsets(config, layer) if config.position == "relative" else None,
        offset_bias=offset_bias,
        qv_bias=None if config.key_bias else _qv_bias(config),
    )
    attention.scale = attention.scale if scale is None else scale
    return attention


def _qk_norms(config: ViTConfig) -> tuple[nn.Module, nn.Module]:
    q_norm, k_norm = (
        make_norm(config.key_width, kind=config.norm_kind, eps=config.norm_eps) for _ in range(2)
    )
    return q_norm, k_norm


def _qv_bias(config: ViTConfig) -> nn.Parameter:
    return nn.Parameter(torch.zeros(2, config.heads, config.key_width))


def _attention_norm(config: ViTConfig) -> nn.Module:
    width = config.heads * config.key_width
    return make_norm(width, kind=config.norm_kind, eps=config.norm_eps)


def _rope(config: ViTConfig) -> Rope | MixedRope:
    if config.rope_form == "mixed":
        return MixedRope(config.heads, config.key_width, theta=config.rope_theta)
    return Rope(
        config.key_width,
        grid=config.position_grid or config.grid,
        theta=config.rope_theta,
        form=config.rope_form,
        periods=config.rope_periods,
    )


def _offsets(config: ViTConfig, layer: int) -> nn.Parameter:
    rows, columns = config.grid_at(layer)
    return position_table(2 * rows * columns - 1, config.key_width)


def _offset_bias(config: ViTConfig, layer: int) -> OffsetBias | None:
    grid = config.grid_at(layer)
    if config.relative_table != "none":
        return PrefixedOffsetBias(config.heads, grid=grid)
    if config.position == "relative_bias":
        return OffsetBias(config.heads, grid=grid, local=config.relative_local)
    return None


def full_attention(config: ViTConfig, layer: int) -> nn.Module:
    return self_attention(config, layer=layer)


def lsa_attention(config: ViTConfig, layer: int) -> nn.Module:
    return self_attention(config, Others(), layer=layer, learned_temperature=True)


def sliding_attention(config: ViTConfig, layer: int) -> nn.Module:
    return self_attention(config, Sliding(config.window_size), layer=layer)


def axial_attention(config: ViTConfig, layer: int) -> nn.Module:
    """Rows in even layers, columns in odd ones: two layers make one axial block of the paper."""
    return self_attention(config, Axial("column" if layer % 2 else "row"), layer=layer)


def sparse_attention(config: ViTConfig, layer: int) -> nn.Module:
    return self_attention(config, Sparse(config.window_size), layer=layer)


def mean_attention(config: ViTConfig, layer: int) -> nn.Module:
    """The mean of all values, at the cost of full attention: a control without attention.

    With `relative_bias` positions the mean is weighted by the offset, never by the content.
    """
    return self_attention(config, layer=layer, scale=0.0)


def build_encoder(config: ViTConfig) -> Encoder:
    """The blocks, with stochastic depth growing linearly, and the last LayerNorm."""
    attention: Callable[[ViTConfig, int], nn.Module] = ATTENTIONS[config.attention]
    blocks = [
        EncoderBlock(
            attention(config, layer),
            build_mlp(config),
            config.width,
            norm=config.norm,
            norm_kind=config.norm_kind,
            norm_eps=config.norm_eps,
            norm_bias=config.norm_bias,
            layer_scale=config.layer_scale,
            branch_norm=config.branch_norm,
            drop_path=config.drop_path * layer / max(config.depth - 1, 1),
        )
        for layer in range(config.depth)
    ]
    if config.zero_init_residual:
        for block in blocks:
            silence(block)
    if config.relative_table == "shared":
        share_offset_bias(blocks)
    normed = config.norm != "post" and config.norm_at == "tokens"
    norm = block_norm(config) if normed else nn.Identity()
    return Encoder(blocks, norm, pool_after=config.pool_after, prefix=config.prefix)


def build_mlp(config: ViTConfig) -> Mlp | GatedMlp:
    """MLP of a block."""
    norm = None
    if config.mlp_norm:
        norm = make_norm(config.mlp_width, kind=config.norm_kind, eps=config.norm_eps)
    if config.mlp_activation == "swiglu":
        return GatedMlp(
            config.width,
            config.mlp_width,
            bias=config.mlp_bias,
            norm=norm,
            dropout=config.dropout,
        )
    return Mlp(
        config.width,
        config.mlp_width,
        activation=config.mlp_activation,
        gelu=config.gelu,
        bias=config.mlp_bias,
        norm=norm,
        dropout=config.dropout,
    )


def block_norm(config: ViTConfig) -> nn.Module:
    """Norm of tokens: before the blocks, or behind them, before or after pooling."""
    return make_norm(
        config.width, kind=config.norm_kind, eps=config.norm_eps, bias=config.norm_bias
    )


def silence(block: EncoderBlock) -> None:
    """Set both branches of a block to zero."""
    last = getattr(block.attention, "proj", None)
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            f"zero_init_residual=True needs attention that ends with a linear layer `proj`; "
            f"{type(block.attention).__name__} has none"
        )
    init_zero(last)
    assert isinstance(block.mlp, Mlp | GatedMlp)
    init_zero(block.mlp.fc2)


def share_offset_bias(blocks: Sequence[EncoderBlock]) -> None:
    """Let all blocks have the table of relative positions of the first."""
    for block in blocks[1:]:
        first = blocks[0].attention
        assert isinstance(first, VariantAttention)
        assert isinstance(block.attention, VariantAttention)
        block.attention.offset_bias = first.offset_bias


def build_pool(config: ViTConfig) -> nn.Module:
    if config.attention_pool:
        return AttentionPool(
            config.width,
            heads=config.pool_heads or config.heads,
            mlp_width=config.pool_mlp_width or config.mlp_width,
            skip=config.prefix if config.pool == "map_patches" else 0,
            gelu=config.gelu,
            norm_eps=config.norm_eps,
        )
    if config.pool in ("cls", "cls_dist"):
        return ClassToken(1 if config.pool == "cls" else 2)
    skip = 0 if config.pool == "mean_all" else config.prefix
    return MeanPool(skip, cls=config.pool == "cls_mean")


def build_head(config: ViTConfig) -> nn.Linear | AveragedHeads | None:
    """Last linear layer, which starts at zero; None without classes."""
    if not config.classes:
        return None
    layer: nn.Linear | AveragedHeads
    if config.pool == "cls_dist" and config.head == "linear":
        layer = AveragedHeads(config.width, config.classes)
    else:
        layer = nn.Linear(config.representation, config.classes)
    init_zero(layer)
    return layer
