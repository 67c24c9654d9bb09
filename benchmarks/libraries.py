"""The same network in other libraries: opened as their documentation does, prepared and timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reference.torchvision_ops import declare
from vitlab.classify.classifier import load
from vitlab.config import from_dict
from vitlab.errors import InputError, WeightsError
from vitlab.jobs.benchmark import prepare as vitlab_side
from vitlab.jobs.benchmark.plan import DEFAULT_ENGINE
from vitlab.models.config import ViTConfig, pair
from vitlab.models.variants import create_model
from vitlab.weights.formats.detect import layout_named
from vitlab.weights.save import save_weights

Call = Callable[[], Any]

POOLS = {"cls": "token", "mean": "avg", "map": "map"}
"""Ours, and timm's word for it."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library with Vision Transformers of its own."""

    package: str
    format: str
    """Format of its weights in `vitlab.save_weights`."""
    file: str
    open: Callable[[ViTConfig, Path], Any]
    """The network of a config, from a file of weights."""
    twin: dict[str, Any] = field(default_factory=dict)
    """Fields in which its networks differ from the paper's."""


def open_timm(config: ViTConfig, file: Path) -> Any:
    """Open timm's network."""
    declare()
    import timm

    return timm.create_model(
        "vit_tiny_patch16_224",
        checkpoint_path=str(file),
        img_size=pair(config.image_size),
        patch_size=pair(config.patch_size),
        in_chans=config.channels,
        num_classes=config.classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_width / config.width,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        class_token=config.class_token,
        reg_tokens=config.registers,
        no_embed_class=config.position_prefix == "none",
        global_pool=POOLS[config.pool],
        fc_norm=config.norm_at == "pooled",
        norm_layer=partial(torch.nn.LayerNorm, eps=config.norm_eps),
    ).eval()


def open_transformers(config: ViTConfig, file: Path) -> Any:
    """Open Hugging Face's network, with the attention that it chooses itself."""
    declare()
    from transformers import ViTForImageClassification

    return ViTForImageClassification.from_pretrained(str(file)).eval()


def open_vit_pytorch(config: ViTConfig, file: Path) -> Any:
    """Open lucidrains's network, with heads of the paper's width."""
    declare()
    from vit_pytorch import ViT

    network = ViT(
        image_size=pair(config.image_size),
        patch_size=pair(config.patch_size),
        num_classes=config.classes,
        channels=config.channels,
        dim=config.width,
        depth=config.depth,
        heads=config.heads,
        dim_head=config.key_width,
        mlp_dim=config.mlp_width,
        pool=config.pool,
    )
    network.load_state_dict(torch.load(file, weights_only=True))
    return network.eval()


PEERS = {
    "timm": Peer(package="timm", format="timm", file="timm.safetensors", open=open_timm),
    "transformers": Peer(
        package="transformers", format="huggingface", file="transformers", open=open_transformers
    ),
    "vit-pytorch": Peer(
        package="vit_pytorch",
        format="vit-pytorch",
        file="vit-pytorch.pt",
        open=open_vit_pytorch,
        twin={"patch_norm": "both", "qkv_bias": False, "norm_eps": 1e-5},
    ),
}


def prepare(model: str, *, folder: str, peers: Sequence[str], batch: int) -> Call:
    """Write images and the weights of every library; return each network with its libraries.

    A library that builds its networks otherwise gets a twin: a network of the same sizes in its
    form, with random weights, which vitlab computes too.
    """
    place = Path(folder)
    plain = _prepare(model, place, batch)
    network = load(plain["places"][DEFAULT_ENGINE]).model
    config = network.config
    twins = [name for name in peers if _needs_twin(PEERS[name], config)]
    able = [name for name in peers if name not in twins]
    found = [(plain, able)]
    _save_for(able, network, Path(plain["folder"]))
    for name in twins:
        torch.manual_seed(0)
        twin: Any = create_model(replace(config, **PEERS[name].twin))
        torch.nn.init.normal_(twin.head.weight, std=vitlab_side.HEAD_STD)
        file = place / f"as-in-{name}.safetensors"
        save_weights(twin, file)
        facts = _prepare(str(file), place / name, batch)
        _save_for([name], twin, Path(facts["folder"]))
        found.append((facts, [name]))
    return lambda: found


def _prepare(model: str, place: Path, batch: int) -> dict[str, Any]:
    """Facts about vitlab's side of the comparison."""
    options: dict[str, Any] = {"engines": [DEFAULT_ENGINE], "merge_tokens": [0], "batch": batch}
    facts: dict[str, Any] = vitlab_side.prepare(model, folder=str(place), **options)()
    return facts


def _needs_twin(peer: Peer, config: Any) -> bool:
    """Whether a library builds its networks otherwise; raise if it cannot build the network."""
    if not isinstance(config, ViTConfig):
        raise InputError(f"{peer.package} has no {type(config).__name__}; valid: a ViTConfig")
    try:
        layout_named(peer.format).check(config)
    except WeightsError:
        if peer.twin:
            return True
        raise
    return False


def _save_for(names: Sequence[str], network: Any, place: Path) -> None:
    """Save the weights of a network in the formats of libraries."""
    for name in names:
        file = place / PEERS[name].file
        if not file.suffix:
            file.mkdir(exist_ok=True)
        save_weights(network, file, format=PEERS[name].format)


def open_peer(name: str, folder: str, config: dict[str, Any]) -> Any:
    """Open a library's network from the weights in a prepared folder."""
    return PEERS[name].open(from_dict(ViTConfig, config), Path(folder) / PEERS[name].file)


def prepared_images(folder: str, batch: int) -> Any:
    """The first images of a prepared folder."""
    return torch.from_numpy(np.load(Path(folder) / vitlab_side.IMAGES)[:batch])


def peer(name: str, folder: str, config: dict[str, Any], batch: int) -> Call:
    """Return a library's forward pass of the prepared images; its result are the logits."""
    network, images = open_peer(name, folder, config), prepared_images(folder, batch)

    def call() -> Any:
        with torch.inference_mode():
            found = network(images)
        return getattr(found, "logits", found)

    return call
