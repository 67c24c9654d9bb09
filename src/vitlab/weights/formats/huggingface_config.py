"""Hugging Face's `config.json` of a ViT, of models with the same encoder, and of vision towers.

Every key is either understood, without effect on predictions, or rejected by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.reading import flag, fraction, integer, one_of, size

MODELS: dict[str, dict[str, Any]] = {
    "vit": {"layer_norm_eps": 1e-12},
    "vit_mae": {"layer_norm_eps": 1e-12},
    "vit_msn": {"layer_norm_eps": 1e-6},
    "ijepa": {"layer_norm_eps": 1e-12},
    "deit": {"layer_norm_eps": 1e-12},
    "beit": {"layer_norm_eps": 1e-12},
    "data2vec-vision": {"layer_norm_eps": 1e-12},
    "metaclip_2_vision_model": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    "clip_vision_model": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    "siglip_vision_model": {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    "dinov2": {"layer_norm_eps": 1e-6},
    "dinov2_with_registers": {"layer_norm_eps": 1e-6, "num_register_tokens": 4},
    "dinov3_vit": {"layer_norm_eps": 1e-5, "num_attention_heads": 6, "rope_theta": 100.0},
}
"""Supported values of `model_type`, and defaults in which they differ."""
TOWERS = {
    "clip": "clip_vision_model",
    "metaclip_2": "metaclip_2_vision_model",
    "siglip": "siglip_vision_model",
}
"""Models of images and text, and the model of their images."""
DEFAULTS = {"num_attention_heads": 12, "hidden_act": "gelu"}
ARCHITECTURES = (
    *("ViTModel", "ViTForImageClassification", "ViTForMaskedImageModeling"),
    *("ViTMAEModel", "ViTMAEForPreTraining", "ViTMSNModel", "ViTMSNForImageClassification"),
    *("CLIPModel", "CLIPVisionModel", "CLIPVisionModelWithProjection"),
    *("MetaClip2Model", "MetaClip2VisionModel", "MetaClip2VisionModelWithProjection"),
    *(
        "MetaClip2ForImageClassification",
        "CLIPForImageClassification",
        "SiglipModel",
        "SiglipVisionModel",
    ),
    *("SiglipForImageClassification", "Dinov2Model", "Dinov2WithRegistersModel"),
    *("DINOv3ViTModel", "IJepaModel", "IJepaForImageClassification", "DeiTModel"),
    *("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    *("DeiTForMaskedImageModeling", "BeitModel", "BeitForImageClassification"),
    *("Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification"),
    *("BeitForMaskedImageModeling", "Data2VecVisionModel", "Data2VecVisionForImageClassification"),
)
GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
}
FIELDS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "hidden_size": ("width", integer),
    "num_hidden_layers": ("depth", integer),
    "num_attention_heads": ("heads", integer),
    "intermediate_size": ("mlp_width", integer),
    "layer_norm_eps": ("norm_eps", fraction),
    "image_size": ("image_size", size),
    "patch_size": ("patch_size", size),
    "num_channels": ("channels", integer),
    "hidden_dropout_prob": ("dropout", fraction),
    "attention_probs_dropout_prob": ("attention_dropout", fraction),
    "num_register_tokens": ("registers", integer),
    "rope_theta": ("rope_theta", fraction),
    "attention_dropout": ("attention_dropout", fraction),
    "qkv_bias": ("qkv_bias", flag),
}
"""Keys that correspond to a field of our config, and the check of their value."""
FIXED: dict[str, tuple[Any, ...]] = {
    "pooler_act": ("tanh",),
    "pruned_heads": ({}, None),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "vision_use_head": (True,),
}
"""Keys that are supported with these values only."""
HARMLESS = frozenset(
    [
        *("model_type", "architectures", "id2label", "label2id", "num_labels", "problem_type"),
        *("transformers_version", "_name_or_path", "_commit_hash", "_attn_implementation"),
        *("_attn_implementation_internal", "_attn_implementation_autoset", "attn_implementation"),
        *("dtype", "torch_dtype", "torchscript", "use_bfloat16", "initializer_range"),
        *("gradient_checkpointing", "return_dict", "output_attentions", "output_hidden_states"),
        *("chunk_size_feed_forward", "finetuning_task", "tie_word_embeddings"),
        *("tie_encoder_decoder", "tf_legacy_loss", "use_cache", "xla_device", "encoder_stride"),
        *("pooler_output_size", "mask_ratio", "norm_pix_loss", "decoder_hidden_size"),
        *("decoder_intermediate_size", "decoder_num_attention_heads"),
        *("decoder_num_hidden_layers", "tokenizer_class", "prefix", "bos_token_id"),
        *("pad_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"),
        *("task_specific_params", "max_length", "min_length", "do_sample", "early_stopping"),
        *("num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p"),
        *("typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("output_scores", "return_dict_in_generate", "forced_bos_token_id"),
        *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "initializer_factor", "projection_dim"),
        *("text_config", "vision_config", "text_config_dict", "vision_config_dict"),
        *("drop_path_rate", "use_mask_token", "reshape_hidden_states", "out_features"),
        *("out_indices", "_out_features", "_out_indices", "stage_names", "logit_scale"),
        *("logit_scale_init_value", "output_dim"),
    ]
)
"""Keys without effect on predictions: training, other tasks, text, bookkeeping.

Tensors decide the number of classes and the size of the pooler.
"""
BEIT = ("beit", "data2vec-vision")
DINO = ("dinov2", "dinov2_with_registers", "dinov3_vit")
OF_SOME: dict[str, tuple[str, ...]] = {
    "num_register_tokens": DINO[1:],
    **dict.fromkeys(("mlp_ratio", "use_swiglu_ffn", "layerscale_value", "apply_layernorm"), DINO),
    **dict.fromkeys(("interpolate_antialias", "interpolate_offset"), DINO[:2]),
    **dict.fromkeys(("rope_theta", "use_gated_mlp", "query_bias", "key_bias"), DINO[2:]),
    **dict.fromkeys(("value_bias", "proj_bias", "mlp_bias", "pos_embed_shift"), DINO[2:]),
    **dict.fromkeys(("pos_embed_jitter", "pos_embed_rescale"), DINO[2:]),
    **dict.fromkeys(("use_relative_position_bias", "use_shared_relative_position_bias"), BEIT),
    **dict.fromkeys(("use_absolute_position_embeddings", "use_mean_pooling"), BEIT),
    **dict.fromkeys(("layer_scale_init_value", "vocab_size", "pool_scales", "add_fpn"), BEIT),
    **dict.fromkeys(("use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels"), BEIT),
    **dict.fromkeys(("auxiliary_num_convs", "auxiliary_concat_input"), BEIT),
    **dict.fromkeys(("semantic_loss_ignore_index",), BEIT),
}
"""Keys of some model types only; those that are no field follow from the tensors."""


def family(config: ViTConfig) -> str:
    """The `model_type` of transformers that has the parts of a config."""
    if not config.class_token:
        return "ijepa"
    if config.registers:
        return "deit"
    return "vit" if config.key_bias and config.layer_scale is None else "beit"


def is_huggingface(content: Mapping[str, Any]) -> bool:
    """True if a `config.json` describes a model of transformers."""
    keys = ("model_type", "num_attention_heads", "hidden_size", "architectures")
    return any(key in content for key in keys)


def huggingface_fields(
    content: Mapping[str, Any], *, trust: bool
) -> tuple[dict[str, Any], list[str]]:
    """Fields of our config, and notes about uncertain values.

    `trust` accepts an unknown model type as a ViT, with its keys.
    """
    content = _tower(content)
    notes = _model(content, trust=trust)
    for key, value in content.items():
        if key in FIXED:
            one_of(key, value, FIXED[key])
        elif not _understood(key, content.get("model_type")):
            if not trust:
                raise WeightsError(
                    f"key {key!r} (value {str(value)[:60]!r}) is not supported; valid: the keys of "
                    f"transformers' ViTConfig; trust_architecture=True ignores it, with a warning"
                )
            notes.append(f"key {key!r} of config.json changes nothing")
    values = DEFAULTS | MODELS.get(content.get("model_type", ""), {}) | dict(content)
    fields = {
        field: check(key, values[key]) for key, (field, check) in FIELDS.items() if key in values
    }
    if content.get("use_gated_mlp"):
        one_of("hidden_act", values["hidden_act"], ("silu",))
        return fields, notes
    return fields | {"gelu": GELU[one_of("hidden_act", values["hidden_act"], GELU)]}, notes


def _understood(key: str, kind: Any) -> bool:
    """True if a key of a model type is a field of ours or has no effect on predictions."""
    if key in OF_SOME:
        return kind in OF_SOME[key]
    return key in HARMLESS or key in FIELDS or key == "hidden_act"


def _tower(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config of the image tower, for a model that also has one for text."""
    kind = TOWERS.get(content.get("model_type", ""))
    if kind is None:
        return content
    inner = content.get("vision_config") or {}
    if not isinstance(inner, dict):
        raise WeightsError(f"vision_config {str(inner)[:60]!r}; valid: an object")
    return {**inner, "model_type": kind, "architectures": content.get("architectures")}


def _model(content: Mapping[str, Any], *, trust: bool) -> list[str]:
    """Notes about a model that is treated as a ViT; without trust, it must be known."""
    kind, classes = content.get("model_type"), content.get("architectures") or []
    strange = [f"model_type {kind!r}"] if kind not in MODELS else []
    for name in classes if isinstance(classes, list) else [classes]:
        plain = str(name).removeprefix("TF").removeprefix("Flax")
        strange += [f"architecture {name!r}"] if plain not in ARCHITECTURES else []
    if strange and not trust:
        valid = ARCHITECTURES if kind in MODELS else MODELS
        raise WeightsError(
            f"{strange[0]} is not supported; valid: {', '.join(valid)}; "
            f"trust_architecture=True loads it as a ViT, with a warning"
        )
    return [f"{name} is a plain ViT" for name in strange]
