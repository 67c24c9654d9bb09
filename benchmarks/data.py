"""What data costs on the CPU: batches in memory against a step, files against Pillow, loaders.

    python benchmarks/data.py
    python benchmarks/data.py --threads 2 --rounds 20 --json data.json

Batches in memory are measured as a share of the step of a CIFAR ViT (patch 4, width 192, depth 9);
JPEGs of 500 x 375 become batches of 224 x 224 with a random crop, a flip and normalisation. The
loaders decode them in processes of their own: a folder against torch's DataLoader, tar shards
against webdataset (if it is installed; a folder that holds it may be in PYTHONPATH).
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from deit import PHOTOS
from harness import Progress, compete
from PIL import Image

from vitlab.timing.referee import Contestant, Round, compare, paired_ratios

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IN_MEMORY: Mapping[str, Mapping[str, Any]] = {
    "flip, shift, cutout": {"flip": "random", "shift": 4, "cutout": 8},
    "with TrivialAugment": {"flip": "random", "shift": 4, "cutout": 8, "policy": "trivial"},
    "with mixup and CutMix": {
        "flip": "random",
        "shift": 4,
        "policy": "trivial",
        "mixup": 0.8,
        "cutmix": 1.0,
    },
}
BATCH = 128
BATCHES = 10
"""In one call of a contestant that makes batches in memory: one alone is too short to time."""
FILES = 64
LOADED, SHUFFLED = 16, 256
"""Batches in a turn of a loader, many more than it makes ahead; webdataset's buffer of samples."""
LOADERS = {
    "vitlab, folder": "vitlab_loader",
    "DataLoader": "torch_loader",
    "vitlab, shards": "vitlab_loader",
    "webdataset": "webdataset_loader",
}
PEERS = {"vitlab, folder": "DataLoader", "vitlab, shards": "webdataset"}
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)

Call = Callable[[], Any]


def training_step() -> Call:
    """Forward, backward and AdamW of a CIFAR ViT."""
    import torch
    import torch.nn.functional as F

    import vitlab

    torch.manual_seed(0)
    model = vitlab.create_model("vit_cifar_pure")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def step() -> float:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def batches_in_memory(augment: dict[str, Any]) -> Call:
    """Ours, of images as many as CIFAR's."""
    import torch

    from vitlab.data.augment.config import AugmentConfig
    from vitlab.data.images import ArraySet
    from vitlab.data.loader import ArrayLoader

    pixels = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8)
    loader = ArrayLoader(
        ArraySet(images=pixels, labels=torch.randint(10, (50_000,))),
        batch_size=BATCH,
        seed=0,
        augment=AugmentConfig(**augment),
        mean=CIFAR_MEAN,
        std=CIFAR_STD,
        classes=10,
    )
    batches = loader.batches()
    return lambda: [next(batches).images.shape[0] for _ in range(BATCHES)]


def vitlab_files(folder: str) -> Call:
    """Ours, in this process alone."""
    import torch

    from vitlab.data.augment.config import AugmentConfig
    from vitlab.data.images import FileSet
    from vitlab.data.loader import FileLoader
    from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

    paths = tuple(sorted(Path(folder).iterdir()))
    loader = FileLoader(
        FileSet(paths=paths, labels=torch.zeros(len(paths), dtype=torch.long)),
        batch_size=FILES,
        seed=0,
        augment=AugmentConfig(random_resized_crop=AREA, crop_ratio=RATIO, flip="random"),
        preprocessing=Preprocessing(
            size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="bilinear"
        ),
        classes=10,
        workers=0,
    )
    batches = loader.batches()
    return lambda: torch.tensor(next(batches).images.shape)


def vitlab_decoding(folder: str) -> Call:
    """Ours without what happens to the batch: 8-bit crops."""
    from vitlab.images.decode import Decoder
    from vitlab.images.preprocessing import HALF, Preprocessing

    preprocessing = Preprocessing(size=(224, 224), mean=HALF, std=HALF, interpolation="bilinear")
    decoder = Decoder(preprocessing=preprocessing, area=AREA, ratio=RATIO)
    paths = sorted(map(str, Path(folder).iterdir()))
    draw = random.Random(0)

    def decode() -> list[int]:
        pixels = np.stack([decoder.read(path, draw.getrandbits(32)) for path in paths])
        return list(pixels.shape)

    return decode


class PillowTransform:
    """One image: open, convert, crop, resize, mirror, to float, normalise."""

    def __call__(self, file: Any) -> Any:
        import torch

        from vitlab.images.decode import crop_box
        from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD

        mean, std = np.array(IMAGENET_MEAN, np.float32), np.array(IMAGENET_STD, np.float32)
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        size = (image.height, image.width)
        top, left, bottom, right = crop_box(
            size, area=AREA, ratio=RATIO, seed=random.getrandbits(32)
        )
        image = image.crop((left, top, right, bottom))
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - mean) / std
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def pillow_files(folder: str) -> Call:
    """The images of a folder, one after the other."""
    import torch

    paths, transform = sorted(Path(folder).iterdir()), PillowTransform()
    return lambda: torch.tensor(torch.stack([transform(path) for path in paths]).shape)


# Loaders with processes of their own, endless and shuffled.


def vitlab_loader(data: str, workers: int) -> Call:
    """Ours, of a folder or of shards."""
    import torch

    from vitlab.data.augment.config import AugmentConfig
    from vitlab.data.datasets import open_data
    from vitlab.data.loader import FileLoader
    from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

    source = open_data(data)
    loader = FileLoader(
        source.open_train(),
        batch_size=FILES,
        seed=0,
        augment=AugmentConfig(random_resized_crop=AREA, crop_ratio=RATIO, flip="random"),
        preprocessing=Preprocessing(
            size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="bilinear"
        ),
        classes=len(source.labels),
        workers=workers,
    )
    batches = loader.batches()
    return lambda: torch.tensor([next(batches).images.shape for _ in range(LOADED)][-1])


class Photos:
    """Dataset of a folder of classes for torch's DataLoader."""

    def __init__(self, folder: str) -> None:
        self.paths, self.transform = sorted(Path(folder).glob("*/*.jpg")), PillowTransform()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return self.transform(self.paths[number])


def torch_loader(data: str, workers: int) -> Call:
    """`torch.utils.data.DataLoader` of a folder."""
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    photos: Any = Photos(data)
    sampler = RandomSampler(photos, replacement=True, num_samples=1 << 30)
    batches = iter(DataLoader(photos, FILES, sampler=sampler, num_workers=workers))
    return lambda: torch.tensor([next(batches).shape for _ in range(LOADED)][-1])


def webdataset_loader(data: str, workers: int) -> Call:
    """webdataset of shards, with torch's DataLoader as it advises."""
    import torch
    import webdataset

    transform = PillowTransform()
    shards = sorted(map(str, Path(data).rglob("*.tar")))
    dataset = webdataset.WebDataset(shards, resampled=True, shardshuffle=False).shuffle(SHUFFLED)
    decoded = dataset.to_tuple("jpg").map_tuple(lambda content: transform(BytesIO(content)))
    batches = iter(
        webdataset.WebLoader(decoded.batched(FILES), batch_size=None, num_workers=workers)
    )
    return lambda: torch.tensor([next(batches)[0].shape for _ in range(LOADED)][-1])


def write_loaded(folder: Path) -> tuple[Path, Path]:
    """The photos many times over, as a folder of classes and as shards."""
    from vitlab.data.shards.pack import pack

    (folder / "photos").mkdir()
    write_photos(folder / "photos")
    for number in range(LOADED * FILES):
        name = folder / "folder" / f"class {number % 8}" / f"{number:05}.jpg"
        name.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "photos" / f"{number % FILES:03}.jpg", name)
    pack(folder / "folder", folder / "shards", images=2 * FILES)
    return folder / "folder", folder / "shards"


def measure_loaders(options: argparse.Namespace, progress: Progress) -> list[Round]:
    """Ours and theirs on the same folder and the same shards, in turn."""
    with tempfile.TemporaryDirectory() as root:
        folder, shards = map(str, write_loaded(Path(root)))
        names = [name for name in LOADERS if name != "webdataset" or find_spec("webdataset")]
        contestants = [
            Contestant(
                name=name,
                factory=f"data:{LOADERS[name]}",
                arguments={
                    "data": folder if name in ("vitlab, folder", "DataLoader") else shards,
                    "workers": options.workers,
                },
            )
            for name in names
        ]
        progress.start("loaders")
        rounds, _ = compete(
            contestants,
            rounds=options.rounds,
            threads=1,
            seconds=options.seconds,
            check=check_shapes,
            progress=progress.round,
        )
    return rounds


def loader_report(rounds: list[Round], workers: int) -> str:
    """Images per second, and ratios against the peer of the same data."""
    lines = [f"loaders: {workers} processes, {LOADED} batches of {FILES} a turn"]
    for name in rounds[0]:
        seconds = statistics.median(turns[name].seconds / FILES / LOADED for turns in rounds)
        theirs = PEERS.get(name)
        ratio = ""
        if theirs in rounds[0]:
            found = compare([paired_ratios(rounds, name, str(theirs))])
            ratio = f"  {theirs} x {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
        lines.append(f"  {name:26} {1 / seconds:6,.0f} images/s{ratio}")
    return "\n".join(lines)


def torchvision_files(folder: str) -> Call:
    """The transforms of its reference training, on Pillow's images."""
    from reference.torchvision_ops import declare

    declare()
    import torch
    from torchvision import transforms

    from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=AREA, ratio=RATIO),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    paths = sorted(Path(folder).iterdir())

    def batch() -> torch.Tensor:
        images = [transform(Image.open(path).convert("RGB")) for path in paths]
        return torch.tensor(torch.stack(images).shape)

    return batch


def write_photos(folder: Path) -> float:
    """JPEGs as cameras make them, from real photos if there are any; their mean size in bytes."""
    draw = np.random.default_rng(0)
    photos = sorted(PHOTOS.glob("train/*/*.JPEG"))[::7][:FILES] if PHOTOS.is_dir() else []
    for number in range(FILES):
        if number < len(photos):
            image = Image.open(photos[number]).convert("RGB")
        else:
            image = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(image.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
        # Enlarging leaves no detail, and JPEG would have nothing to decode: sensors add noise.
        pixels = pixels + draw.normal(0, 6, (375, 500, 1))
        noisy = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
        noisy.save(folder / f"{number:03}.jpg", quality=90)
    return statistics.fmean(path.stat().st_size for path in folder.iterdir())


def measure_memory(options: argparse.Namespace, progress: Progress) -> list[Round]:
    """The step and every kind of batch, in turn."""
    contestants = [Contestant(name="step", factory="data:training_step")]
    contestants += [
        Contestant(
            name=name, factory="data:batches_in_memory", arguments={"augment": dict(augment)}
        )
        for name, augment in IN_MEMORY.items()
    ]
    progress.start("images in memory")
    rounds, _ = compete(
        contestants,
        rounds=options.rounds,
        threads=options.threads,
        seconds=options.seconds,
        progress=progress.round,
    )
    return rounds


FILE_CONTESTANTS = {
    "vitlab": "data:vitlab_files",
    "vitlab, 8-bit crops alone": "data:vitlab_decoding",
    "Pillow": "data:pillow_files",
    "torchvision": "data:torchvision_files",
}


def measure_files(options: argparse.Namespace, progress: Progress) -> tuple[list[Round], float]:
    """Ours and theirs on the same files, one core each; and the mean size of a file."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_photos(Path(folder))
        contestants = [
            Contestant(name=name, factory=factory, arguments={"folder": folder})
            for name, factory in FILE_CONTESTANTS.items()
        ]
        progress.start("files")
        rounds, _ = compete(
            contestants,
            rounds=options.rounds,
            threads=1,
            seconds=options.seconds,
            check=check_shapes,
            progress=progress.round,
        )
    return rounds, size


def check_shapes(results: dict[str, Any]) -> None:
    """Refuse to time what does not make the same batches."""
    for name, shape in results.items():
        if list(shape) != [FILES, 3, 224, 224]:
            raise SystemExit(f"{name} makes batches of shape {shape}")


def memory_report(rounds: list[Round], threads: int) -> str:
    """Images per second, and the share of a step that their batch costs."""
    step = statistics.median(turns["step"].seconds for turns in rounds)
    lines = [f"images in memory, {threads} threads: a step of {BATCH} takes {1e3 * step:.0f} ms"]
    for name in IN_MEMORY:
        seconds = statistics.median(turns[name].seconds / BATCHES for turns in rounds)
        share = compare([[1 / (r * BATCHES) for r in paired_ratios(rounds, name, "step")]])
        lines.append(
            f"  {name:22} {BATCH / seconds:8,.0f} images/s  {1e3 * seconds:6.2f} ms  "
            f"{share.ratio:.2%} of the step ({share.low:.2%} to {share.high:.2%})"
        )
    return "\n".join(lines)


def file_report(rounds: list[Round], size: float) -> str:
    """Images per second of one core, and ratios against the peers."""
    lines = [f"files: {FILES} JPEGs of 500 x 375, {size / 1e3:.0f} kB each, one core"]
    for name in FILE_CONTESTANTS:
        seconds = statistics.median(turns[name].seconds / FILES for turns in rounds)
        ratios = (
            f"{theirs} x {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
            for theirs in ("Pillow", "torchvision")
            if name.startswith("vitlab")
            for found in [compare([paired_ratios(rounds, name, theirs)])]
        )
        lines.append(f"  {name:26} {1 / seconds:6,.0f} images/s  {'  '.join(ratios)}".rstrip())
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn, about")
    parser.add_argument("--threads", type=int, default=1, help="of the step and of its data")
    parser.add_argument("--only", choices=["memory", "files", "loaders"])
    parser.add_argument("--workers", type=int, default=2, help="processes of a loader")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    return parser.parse_args()


def main() -> None:
    """Measure, print the tables."""
    options = parse()
    progress = Progress(1 if options.only else 3)
    found: dict[str, Any] = {
        "machine": {"processor": platform.processor(), "system": platform.platform()},
        "load": os.getloadavg(),
    }
    reports = []
    if options.only in (None, "memory"):
        rounds = measure_memory(options, progress)
        reports.append(memory_report(rounds, options.threads))
        found["memory"] = [{k: asdict(turn) for k, turn in turns.items()} for turns in rounds]
    if options.only in (None, "files"):
        rounds, size = measure_files(options, progress)
        reports.append(file_report(rounds, size))
        found["files"] = [{k: asdict(turn) for k, turn in turns.items()} for turns in rounds]
    if options.only in (None, "loaders"):
        rounds = measure_loaders(options, progress)
        reports.append(loader_report(rounds, options.workers))
        found["loaders"] = [{k: asdict(turn) for k, turn in turns.items()} for turns in rounds]
    print("\n" + "\n\n".join(reports))
    print(f"load at the start: {found['load'][0]:.2f}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
