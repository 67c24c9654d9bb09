"""The contestants of the benchmarks: the same network in vitlab and in its peers, and the machine.

Each function is called inside a process of its own and returns the call that is timed.
"""

from collections.abc import Callable
from typing import Any

TIMM_NAMES = {
    "vit_ti16": "vit_tiny_patch16_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_s32": "vit_small_patch32_224",
    "vit_b16": "vit_base_patch16_224",
    "vit_b32": "vit_base_patch32_224",
    "vit_l16": "vit_large_patch16_224",
}
NETWORKS: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    ({}, {"timm": "timm.safetensors", "huggingface": "transformers"}),
    (
        {"patch_norm": "both", "qkv_bias": False, "norm_eps": 1e-5},
        {"vit-pytorch": "vit-pytorch.pt"},
    ),
)
"""What differs from the named model, and the files that its weights are written to."""
SGEMM_SIDE = 1536

Call = Callable[[], Any]


def prepare(model: str, batch: int, folder: str) -> Call:
    """Write images, and random weights in every peer's format; tell what the model costs."""
    import torch

    import vitlab
    from vitlab.models.flops import cost

    torch.manual_seed(0)
    torch.save(torch.randn(batch, 3, 224, 224), f"{folder}/images.pt")
    for changes, formats in NETWORKS:
        network = vitlab.create_model(model, **changes)
        assert isinstance(network, vitlab.VisionTransformer)
        assert network.head is not None
        torch.nn.init.normal_(network.head.weight, std=0.02)  # fresh ones are zero: all would agree
        for format, file in formats.items():
            vitlab.save_weights(network, f"{folder}/{file}", format=format)
    return lambda: {"flops": batch * cost(model).flops, "torch": torch.__version__}


def vitlab_forward(folder: str, file: str) -> Call:
    """Ours, from the very file that the peer reads."""
    import vitlab

    return _forward(vitlab.load_weights(f"{folder}/{file}"), folder)


def timm_forward(folder: str, model: str) -> Call:
    """timm's, as its documentation opens a local file."""
    _make_torchvision_importable()
    import timm

    path = f"{folder}/timm.safetensors"
    return _forward(timm.create_model(TIMM_NAMES[model], checkpoint_path=path), folder)


def transformers_forward(folder: str) -> Call:
    """Hugging Face's, with the attention that it chooses itself."""
    _make_torchvision_importable()
    from transformers import ViTForImageClassification

    model = ViTForImageClassification.from_pretrained(f"{folder}/transformers")
    return _forward(model, folder, lambda output: output.logits)


def vit_pytorch_forward(folder: str, model: str) -> Call:
    """lucidrains's, with heads of the paper's width."""
    _make_torchvision_importable()
    import torch
    from vit_pytorch import ViT

    from vitlab.models.config import ViTConfig
    from vitlab.models.variants import variant

    config = variant(model)
    assert isinstance(config, ViTConfig)
    network = ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.classes,
        dim=config.width,
        depth=config.depth,
        heads=config.heads,
        dim_head=config.key_width,
        mlp_dim=config.mlp_width,
    )
    network.load_state_dict(torch.load(f"{folder}/vit-pytorch.pt", weights_only=True))
    return _forward(network, folder)


def sgemm() -> Call:
    """A large product of float32 matrices: the speed that nothing here can pass."""
    import torch

    left, right = torch.randn(2, SGEMM_SIDE, SGEMM_SIDE)

    def multiply() -> float:
        return float((left @ right)[0, 0])

    return multiply


def _forward(model: Any, folder: str, logits: Callable[[Any], Any] = lambda output: output) -> Call:
    import torch

    model.eval()
    images = torch.load(f"{folder}/images.pt", weights_only=True)

    def forward() -> Any:
        with torch.inference_mode():
            return logits(model(images))

    return forward


def _make_torchvision_importable() -> None:
    from reference.torchvision_ops import declare

    declare()
