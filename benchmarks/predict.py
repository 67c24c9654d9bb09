"""`vitlab predict` over a folder of JPEGs against the script that most people write with timm.

    python benchmarks/predict.py
    python benchmarks/predict.py --images 300 --batch 64 --rounds 6 --json predict.json

Both load the same DeiT-Ti, read the same files, keep the five likeliest classes and write them to a
CSV file; imports are not counted. The peer is timm with Pillow and a DataLoader, once for each
`--batch`. A ratio is their time divided by ours: above 1 we are faster. Nothing is timed unless
every image has the same top-1 and no probability differs by more than the tolerance.
Needs the extra `dev`, and real weights and photos (`deit.py` says where).
"""

import argparse
import csv
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deit import PHOTOS, PLACE, WEIGHTS
from harness import Progress, compete

from vitlab.timing.referee import (
    MACHINE,
    Contestant,
    Round,
    compare,
    disturbances,
    machine,
    paired_ratios,
)

CROP = 224 / 256
"""As the authors of DeiT evaluated it; timm's own default is another."""
CLASSES = 1000
TOP = 5
TOLERANCE = 1e-3
OURS = "vitlab"

Answers = dict[str, list[tuple[int, float]]]
"""Class and probability of the likeliest classes, by the path of the image."""


def vitlab_predict(folder: str, output: str) -> Callable[[], Answers]:
    """Ours: the command, as the shell would run it."""
    from vitlab.cli.main import run

    labels = Path(output).with_suffix(".txt")
    labels.write_text("\n".join(map(str, range(CLASSES))))
    arguments = ["predict", str(WEIGHTS), folder, "--output", output, "--overwrite", "--json"]

    def call() -> Answers:
        assert run([*arguments, "--top", str(TOP), "--labels", str(labels)]) == 0
        with open(output, newline="") as file:
            rows = list(csv.DictReader(file))
        return {row["path"]: [(int(c), p) for c, p in json.loads(row["top"])] for row in rows}

    return call


def timm_predict(folder: str, output: str, batch: int, workers: int) -> Callable[[], Answers]:
    """Theirs: a dataset, a DataLoader, a loop, as timm's documentation shows the parts."""
    from reference.torchvision_ops import declare

    declare()
    import timm
    import torch
    from PIL import Image
    from timm.data import create_transform, resolve_data_config
    from torch.utils.data import DataLoader, Dataset

    class Photos(Dataset[tuple[Any, str]]):
        def __init__(self, paths: list[Path], transform: Callable[[Any], Any]) -> None:
            self.paths, self.transform = paths, transform

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> tuple[Any, str]:
            path = self.paths[index]
            return self.transform(Image.open(path).convert("RGB")), str(path)

    def call() -> Answers:
        model = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(WEIGHTS)).eval()
        settings = resolve_data_config({"crop_pct": CROP}, model=model)
        transform = create_transform(**settings)
        photos = Photos(sorted(Path(folder).iterdir()), transform)
        answers: Answers = {}
        with open(output, "w", newline="") as file, torch.inference_mode():
            writer = csv.writer(file)
            for images, paths in DataLoader(photos, batch_size=batch, num_workers=workers):
                values, classes = model(images).softmax(dim=-1).topk(TOP)
                for path, top in zip(paths, zip(classes, values, strict=True), strict=True):
                    answers[path] = list(zip(*(part.tolist() for part in top), strict=True))
                    writer.writerow([path, json.dumps(answers[path])])
        return answers

    return call


def gather(folder: Path, count: int) -> int:
    """Links to the photos, training and validation, in one folder; how many there are."""
    photos = sorted(PHOTOS.rglob("*.JPEG"))
    if not (photos and WEIGHTS.is_file()):
        raise SystemExit(f"no photos or weights in {PLACE}")
    step = max(1, len(photos) // count)
    chosen = photos[::step][:count]
    for number, photo in enumerate(chosen):
        (folder / f"{number:05}.jpg").symlink_to(photo)
    return len(chosen)


def contestants(folder: str, results: str, options: argparse.Namespace) -> list[Contestant]:
    """Ours, theirs at each size of batch, and the machine itself."""
    ours = {"folder": folder, "output": f"{results}/vitlab.csv"}
    rivals = [
        Contestant(
            name=peer(batch),
            factory="predict:timm_predict",
            arguments={
                "folder": folder,
                "output": f"{results}/timm{batch}.csv",
                "batch": batch,
                "workers": options.workers,
            },
        )
        for batch in options.batch
    ]
    return [
        Contestant(name=OURS, factory="predict:vitlab_predict", arguments=ours),
        *rivals,
        machine(),
    ]


def peer(batch: int) -> str:
    """What a rival is called."""
    return f"timm, batches of {batch}"


def check_agreement(results: dict[str, Any]) -> str:
    """The largest difference between probabilities; answers that are not the same are refused."""
    ours = results[OURS]
    worst = 0.0
    for name, theirs in results.items():
        if name in (OURS, MACHINE):
            continue
        if ours.keys() != theirs.keys():
            raise SystemExit(f"{name}: predicts {len(theirs)} images, we {len(ours)}")
        for path, top in theirs.items():
            if ours[path][0][0] != top[0][0]:
                raise SystemExit(f"{name}: {path} is {top[0]}, for us {ours[path][0]}")
            known = dict(map(tuple, ours[path]))
            # A class that is among the five of one alone is as likely as the last of them.
            least = ours[path][-1][1]
            errors = [abs(known.get(label, least) - value) for label, value in top]
            if not all(error <= TOLERANCE for error in errors):  # nan is no agreement either
                raise SystemExit(f"{name}: {path} differs by {max(errors):.2g}")
            worst = max(worst, *errors)
    return f"same top-1 for {len(ours):,} images, probabilities within {worst:.1g}"


def report(rounds: list[Round], images: int, batches: list[int]) -> str:
    """Images per second, and ratios with their intervals."""
    names = [OURS, *map(peer, batches)]
    lines = []
    for name in names:
        speed = images / statistics.median(turns[name].seconds for turns in rounds)
        line = f"{name:22} {speed:6.1f} images/s"
        if name != OURS:
            found = compare([paired_ratios(rounds, OURS, name)])
            line += f"  ratio {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
            line += f"  vitlab is {found.verdict}"
        lines.append(line)
    lines += [
        f"warning: {found}; measure again before quoting this" for found in disturbances(rounds)
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 64], help="of timm")
    parser.add_argument("--workers", type=int, default=cores, help="of timm's DataLoader")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--json", type=Path, help="write everything measured here")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and refuse to measure what does not agree."""
    options = parse()
    progress = Progress(1)
    agreement: list[str] = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        images = gather(Path(folder), options.images)
        progress.start(f"{images} images")
        rounds, memory = compete(
            contestants(folder, results, options),
            rounds=options.rounds,
            threads=options.threads,
            seconds=1.0,
            check=lambda found: agreement.append(check_agreement(found)),
            progress=progress.round,
        )
    print(f"\n{agreement[0]}\n{report(rounds, images, options.batch)}")
    if options.json is not None:
        found = {
            "machine": {"processor": platform.processor(), "system": platform.platform()},
            "images": images,
            "agreement": agreement[0],
            "rounds": [{k: asdict(turn) for k, turn in turns.items()} for turns in rounds],
            "memory": {name: asdict(used) for name, used in memory.items()},
        }
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
