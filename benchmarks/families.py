"""Eager forward pass of newer families on the CPU: vitlab against timm and transformers.

    python benchmarks/families.py
    python benchmarks/families.py --networks timm:eva02_tiny_patch14_224 --batch 1 8 --rounds 15

Each network is built by its library with random weights, saved as the library saves it, and opened
by both. Nothing is timed unless the outputs agree. A ratio is their time divided by ours: above 1
we are faster. Needs the extra `dev`.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from harness import Process, Progress, compete
from peers import check_equal

from vitlab.timing.referee import Contestant, compare, disturbances, machine, paired_ratios

NETWORKS = (
    "timm:vit_base_patch16_clip_224",
    "timm:vit_base_patch16_siglip_224",
    "timm:vit_small_patch14_reg4_dinov2",
    "timm:vit_small_patch16_dinov3",
    "timm:eva02_small_patch14_224",
    "timm:beit_base_patch16_224",
    "timm:deit3_small_patch16_224",
    "timm:vit_small_patch16_rope_224",
    "transformers:CLIPForImageClassification",
    "transformers:SiglipForImageClassification",
    "transformers:Dinov2WithRegistersForImageClassification",
    "transformers:BeitForImageClassification",
)
SIZE = 224
OURS = "vitlab"

Call = Callable[[], Any]


def prepare(network: str, batch: int, folder: str) -> Call:
    """Write images, and the network as its library saves it; the result is the seed."""
    import torch

    torch.manual_seed(0)
    library, name = network.split(":")
    if library == "timm":
        timm = _timm()
        changes = {"img_size": SIZE, "num_classes": 1000}
        module = timm.create_model(name, **changes)
        torch.nn.init.normal_(module.get_classifier().weight, std=0.02)
        for key, value in module.named_parameters():
            if "gamma" in key:  # LayerScale starts so small that it would hide the blocks
                torch.nn.init.uniform_(value, 0.1, 1.0)
        timm.models.save_for_hf(module, folder, model_args=changes, safe_serialization=True)
    else:
        _transformers(name).save_pretrained(folder)
    torch.save(torch.randn(batch, 3, SIZE, SIZE), f"{folder}/images.pt")
    return lambda: 0


def forward(network: str, name: str, folder: str) -> Call:
    """Forward pass in this library; its result are the logits."""
    import torch

    module = _open(network, name, folder).eval()
    images = torch.load(f"{folder}/images.pt", weights_only=True)

    def call() -> Any:
        with torch.inference_mode():
            found = module(images)
        return getattr(found, "logits", found)

    return call


def _open(network: str, name: str, folder: str) -> Any:
    if name == OURS:
        import vitlab

        return vitlab.load_weights(f"{folder}/model.safetensors")
    library, architecture = network.split(":")
    if library == "timm":
        changes = {"img_size": SIZE, "num_classes": 1000}
        file = f"{folder}/model.safetensors"
        return _timm().create_model(architecture, checkpoint_path=file, **changes)
    return type(_transformers(architecture)).from_pretrained(folder)


def _timm() -> Any:
    from reference.torchvision_ops import declare

    declare()
    import timm

    return timm


def _transformers(name: str) -> Any:
    """A network of base size with a head for 1,000 classes, and random weights."""
    from reference.torchvision_ops import declare

    declare()
    import torch
    import transformers

    module = getattr(transformers, name)
    config = module.config_class()
    vision = getattr(config, "vision_config", config)
    vision.image_size = SIZE
    config.num_labels = 1000
    found = module(config)
    torch.nn.init.normal_(found.classifier.weight, std=0.02)
    return found


def measure(network: str, batch: int, options: argparse.Namespace, progress: Progress) -> Any:
    """Rounds of both libraries and of the machine itself."""
    library = network.split(":")[0]
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"network": network, "batch": batch, "folder": folder}
        first = Contestant(name="preparation", factory="families:prepare", arguments=arguments)
        with Process(first, threads=options.threads) as process:
            process.result()
        rivals = [
            Contestant(
                name=name,
                factory="families:forward",
                arguments={"network": network, "name": name, "folder": folder},
            )
            for name in (OURS, library)
        ]
        rounds, _ = compete(
            [*rivals, machine()],
            rounds=options.rounds,
            threads=options.threads,
            seconds=options.seconds,
            seed=options.seed,
            check=lambda results: check_equal(library, results[OURS], results[library]),
            progress=progress.round,
        )
    return rounds


def main() -> None:
    """Measure every network at every batch size, and print a table."""
    options = parse()
    settings = list(product(options.networks, options.batch))
    progress, found = Progress(len(settings)), []
    for network, batch in settings:
        progress.start(f"{network} b{batch}")
        rounds = measure(network, batch, options, progress)
        library = network.split(":")[0]
        ratios = paired_ratios(rounds, OURS, library)
        ours, theirs = (
            1e3 * statistics.median(turns[name].seconds for turns in rounds)
            for name in (OURS, library)
        )
        found.append({"network": network, "batch": batch, "ours_ms": ours, "theirs_ms": theirs})
        found[-1] |= {"ratios": ratios, "disturbances": list(disturbances(rounds))}
    print()
    for row in found:
        one, label = compare([row["ratios"]]), f"{row['network']} b{row['batch']}"
        times = f"{row['ours_ms']:8.1f} ms {row['theirs_ms']:8.1f} ms"
        print(f"{label:58} {times}  {one.ratio:.3f}  {one.low:.3f} to {one.high:.3f}")
        for line in row["disturbances"]:
            print(f"warning: {label}: {line}; measure again before quoting this")
    whole = compare([row["ratios"] for row in found])
    print(
        f"geometric mean {whole.ratio:.3f} ({whole.low:.3f} to {whole.high:.3f}): {whole.verdict}"
    )
    if options.json is not None:
        content = {"settings": found, "mean": asdict(whole)}
        options.json.write_text(json.dumps(content, indent=1))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="LIBRARY:NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn, about")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
