"""The contestants of the benchmarks: the same network in vitlab and in its peers.

Each function is called inside a process of its own and returns the call that is timed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = ("vit_ti16", "vit_s16", "vit_s32", "vit_b16", "vit_b32", "vit_l16")
NETWORKS: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    ({}, {"timm": "timm.safetensors", "huggingface": "transformers"}),
    (
        {"patch_norm": "both", "qkv_bias": False, "norm_eps": 1e-5},
        {"vit-pytorch": "vit-pytorch.pt"},
    ),
)
"""What differs from the named model, and the files that its weights are written to."""
RATE = 1e-4
COMPARED = 5
"""Updates whose losses must agree."""

Call = Callable[[], Any]


def prepare(model: str, batch: int, folder: str) -> Call:
    """Write images, and random weights in every peer's format; tell what the model costs."""
    import torch

    import vitlab
    from vitlab.models.cost import cost

    torch.manual_seed(0)
    config = _config(model)
    images = torch.randn(batch, 3, config.image_size, config.image_size)
    labels = torch.randint(config.classes, (batch,))
    torch.save({"images": images, "labels": labels}, f"{folder}/batch.pt")
    for changes, formats in NETWORKS:
        network = vitlab.create_model(model, **changes)
        assert isinstance(network, vitlab.VisionTransformer)
        assert network.head is not None
        torch.nn.init.normal_(network.head.weight, std=0.02)  # fresh ones are zero: all would agree
        for format, file in formats.items():
            vitlab.save_weights(network, f"{folder}/{file}", format=format)
    return lambda: {"flops": batch * cost(model).flops, "torch": torch.__version__}


def forward(network: str, model: str, folder: str) -> Call:
    """A forward pass; its result are the logits."""
    import torch

    module = OPEN[network](folder, model).eval()
    images = torch.load(f"{folder}/batch.pt", weights_only=True)["images"]

    def call() -> Any:
        with torch.inference_mode():
            return _logits(module(images))

    return call


def training(network: str, model: str, folder: str) -> Call:
    """One update with AdamW; its result are the losses of the first updates."""
    import torch

    module = OPEN[network](folder, model).train()
    batch = torch.load(f"{folder}/batch.pt", weights_only=True)
    step = _our_step(module, **batch) if network in OURS else _plain_step(module, **batch)
    losses = [[step() for _ in range(COMPARED)]]

    def call() -> list[list[float]]:
        step()
        return losses

    return call


def _our_step(module: Any, images: Any, labels: Any) -> Callable[[], float]:
    """What `vitlab train` does with a batch."""
    from vitlab.data.loader import Batch
    from vitlab.machine.device import keep_freed_memory
    from vitlab.training.config import OptimizerConfig, TrainConfig
    from vitlab.training.state import new_state
    from vitlab.training.step import train_step

    keep_freed_memory()
    import torch

    optimizer = OptimizerConfig(name="adamw", lr=RATE, weight_decay=0.0, clip_norm=0.0)
    config = TrainConfig(optimizer=optimizer, label_smoothing=0.0)
    state = new_state(module, config)
    batch = Batch(images=images, targets=labels, index=torch.arange(len(labels)))
    return lambda: train_step(state, batch, config, lr_factor=1.0).loss.item()


def _plain_step(module: Any, images: Any, labels: Any) -> Callable[[], float]:
    """The loop that everybody writes."""
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0.0)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(_logits(module(images)), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _open_ours(file: str) -> Callable[[str, str], Any]:
    def open_file(folder: str, model: str) -> Any:
        import vitlab

        return vitlab.load_weights(f"{folder}/{file}", heads=_config(model).heads)

    return open_file


def _open_peer(name: str) -> Callable[[str, str], Any]:
    def open_network(folder: str, model: str) -> Any:
        from libraries import PEERS

        return PEERS[name].open(_config(model), Path(folder) / PEERS[name].file)

    return open_network


OURS = {"vitlab": "timm.safetensors", "vitlab (vit-pytorch's net)": "vit-pytorch.pt"}
"""Our side of each comparison reads the very file that the peer reads."""
OPEN: dict[str, Callable[[str, str], Any]] = {
    **{name: _open_ours(file) for name, file in OURS.items()},
    **{name: _open_peer(name) for name in ("timm", "transformers", "vit-pytorch")},
}


def _config(model: str) -> Any:
    from vitlab.models.variants import variant

    return variant(model)


def _logits(output: Any) -> Any:
    return getattr(output, "logits", output)
