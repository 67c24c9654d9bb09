"""Parts of `vitlab.nn` for a `ViTConfig`: the implementations of the registered names.

A stem turns images [B, C, H, W] into a grid of tokens [B, h, w, D]. A position returns from
`position(grid)` a table to add, prefix entries first, or is a `Conditional`. An attention kind
returns a module with `forward(x, grid)` and `weights(x, grid)`.
"""

from collections.abc import Callable

from torch import nn

from vitlab.errors import ConfigError
from vitlab.models.config import ViTConfig, pair
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import Encoder, EncoderBlock
from vitlab.nn.init import init_zero
from vitlab.nn.mlp import Mlp
from vitlab.nn.patch_embed import PatchEmbed, ShiftedPatchEmbed
from vitlab.nn.pattern import Axial, Others, Pattern, Sliding, Sparse
from vitlab.nn.pool import AttentionPool, ClassToken, MeanPool
from vitlab.nn.pos_embed import Conditional, Learned1d, Learned2d, OffsetBias, Rope, SinCos2d
from vitlab.nn.resnet import ResNetTrunk
from vitlab.nn.stem import ConvEmbed, HybridEmbed
from vitlab.registry import ATTENTIONS, POSITIONS


def patch_stem(config: ViTConfig) -> nn.Module:
    return PatchEmbed(
        config.channels,
        config.width,
        patch_size=pair(config.patch_size),
        norm=config.patch_norm,
        norm_eps=config.norm_eps,
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
    )


def learned2d_position(config: ViTConfig) -> nn.Module:
    return Learned2d(
        config.width,
        grid=config.grid,
        prefix=config.positioned_prefix,
        resize=config.position_resize,
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
) -> SelfAttention:
    """Encoder attention restricted to `pattern`; also for custom kinds.

    Relative positions are created for the grid at block `layer`.
    """
    rope = Rope(config.key_width, grid=config.position_grid or config.grid, theta=config.rope_theta)
    biased = config.position == "relative_bias"
    return SelfAttention(
        config.width,
        heads=config.heads,
        head_width=config.key_width,
        prefix=config.prefix,
        qkv_bias=config.qkv_bias,
        proj=config.proj,
        proj_bias=config.proj_bias,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        pattern=pattern,
        learned_temperature=learned_temperature,
        rope=rope if config.position == "rope" else None,
        relative_to=config.grid_at(layer) if config.position == "relative" else None,
        offset_bias=_offset_bias(config, layer) if biased else None,
    )


def _offset_bias(config: ViTConfig, layer: int) -> OffsetBias:
    return OffsetBias(config.heads, grid=config.grid_at(layer), local=config.relative_local)


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


def build_encoder(config: ViTConfig) -> Encoder:
    """The blocks, with stochastic depth growing linearly, and the last LayerNorm."""
    attention: Callable[[ViTConfig, int], nn.Module] = ATTENTIONS[config.attention]
    blocks = [
        EncoderBlock(
            attention(config, layer),
            Mlp(
                config.width,
                config.mlp_width,
                activation=config.mlp_activation,
                gelu=config.gelu,
                dropout=config.dropout,
            ),
            config.width,
            norm=config.norm,
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
    normed = config.norm == "pre" and config.norm_at == "tokens"
    norm = last_norm(config) if normed else nn.Identity()
    return Encoder(blocks, norm, pool_after=config.pool_after, prefix=config.prefix)


def last_norm(config: ViTConfig) -> nn.LayerNorm:
    """The LayerNorm behind the blocks, before or after pooling."""
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias)


def silence(block: EncoderBlock) -> None:
    """Set both branches of a block to zero."""
    last = getattr(block.attention, "proj", None)
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            f"zero_init_residual=True needs attention that ends with a linear layer `proj`; "
            f"{type(block.attention).__name__} has none"
        )
    init_zero(last)
    assert isinstance(block.mlp, Mlp)
    init_zero(block.mlp.fc2)


def build_pool(config: ViTConfig) -> nn.Module:
    if config.pool == "map":
        return AttentionPool(
            config.width,
            heads=config.heads,
            mlp_width=config.mlp_width,
            gelu=config.gelu,
            norm_eps=config.norm_eps,
        )
    if config.pool == "cls":
        return ClassToken()
    return MeanPool(skip=0 if config.pool == "mean_all" else config.prefix)
