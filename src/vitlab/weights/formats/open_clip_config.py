"""OpenCLIP's `open_clip_config.json`: the image tower of `model_cfg`.

Every key is either understood, without effect on predictions, or rejected by name.
"""

from collections.abc import Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.weights.formats.timm_config import timm_fields
from vitlab.weights.reading import flag, fraction, integer, one_of, section, size

POOLS = {"tok": "cls", "avg": "mean"}
TIMM_POOLS = {"token": "token", "avg": "avg", "map": "map"}
IDENTITY = {"layers": "depth", "width": "width"}
FIXED: dict[str, tuple[Any, ...]] = {
    "attentional_pool": (False,),
    "input_patchnorm": (False,),
    "block_type": (None, "default"),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads"), (False,)),
    **dict.fromkeys(("scale_attn_inner", "scale_attn", "scale_fc"), (False,)),
    "timm_proj": (None, "", "linear", "none"),
    "timm_proj_bias": (False,),
}
"""Keys that are supported with these values only."""
UNDERSTOOD = frozenset(
    [
        *("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "pool_type"),
        *("final_ln_after_pool", "act_kwargs", "norm_kwargs", "timm_model_name", "timm_pool"),
    ]
)
HARMLESS = frozenset(
    [
        *("patch_dropout", "ls_init_value", "no_ln_pre", "pos_embed_type", "output_tokens"),
        *("attn_pooler_queries", "attn_pooler_heads", "timm_model_pretrained", "timm_drop"),
        *("timm_drop_path", "timm_patch_drop"),
    ]
)
"""Keys without effect on predictions, or that tensors decide."""

Fields = dict[str, Any]


def open_clip_fields(content: Mapping[str, Any], *, trust: bool) -> tuple[Fields, Fields]:
    """Fields that the config states, and those of timm's architecture that it names."""
    model = section(content, "model_cfg")
    tower = section(model, "vision_cfg")
    for key, value in tower.items():
        if key in FIXED:
            one_of(key, value, FIXED[key])
        elif key not in UNDERSTOOD | HARMLESS and not trust:
            raise WeightsError(
                f"vision_cfg: key {key!r} (value {str(value)[:60]!r}) is not supported; valid: "
                f"{', '.join(sorted(UNDERSTOOD | HARMLESS | set(FIXED)))}; "
                f"trust_architecture=True ignores it"
            )
    sides: Fields = {}
    if "image_size" in tower:
        sides["image_size"] = size("image_size", tower["image_size"])
    if "timm_model_name" in tower:
        return _timm(tower, sides, trust=trust)
    fields: Fields = {
        ours: integer(key, tower[key]) for key, ours in IDENTITY.items() if key in tower
    }
    if "width" in fields:
        head_width = integer("head_width", tower.get("head_width", 64))
        fields["heads"] = fields["width"] // max(head_width, 1)
        ratio = fraction("mlp_ratio", tower.get("mlp_ratio", 4.0))
        fields["mlp_width"] = int(fields["width"] * ratio)
    if "patch_size" in tower:
        fields["patch_size"] = size("patch_size", tower["patch_size"])
    fields["gelu"] = _gelu(model, tower)
    fields["norm_eps"] = fraction("eps", section(tower, "norm_kwargs").get("eps", 1e-5))
    fields["pool"] = POOLS[one_of("pool_type", tower.get("pool_type", "tok"), POOLS)]
    after = flag("final_ln_after_pool", tower.get("final_ln_after_pool", False))
    fields["norm_at"] = "pooled" if after else "tokens"
    return fields | sides, {}


def _gelu(model: Mapping[str, Any], tower: Mapping[str, Any]) -> str:
    if flag("quick_gelu", model.get("quick_gelu", False)):
        return "quick"
    forms = {"none": "erf", "tanh": "tanh"}
    approximate = section(tower, "act_kwargs").get("approximate", "none")
    return forms[one_of("approximate", approximate, forms)]


def _timm(tower: Mapping[str, Any], sides: Fields, *, trust: bool) -> tuple[Fields, Fields]:
    """Fields of a tower of timm's, whose pooling OpenCLIP may change."""
    content: dict[str, Any] = {"architecture": tower["timm_model_name"]}
    if tower.get("timm_pool"):
        content["global_pool"] = one_of("timm_pool", tower["timm_pool"], TIMM_POOLS)
    fields, usual, _ = timm_fields(content, trust=trust)
    return fields | sides, usual | sides
