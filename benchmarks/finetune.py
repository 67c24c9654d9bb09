"""Fine-tuning on few images: `vitlab finetune` against a plain timm loop, the same minutes each.

    python benchmarks/finetune.py --out runs/few
    python benchmarks/finetune.py --out runs/few --seeds 0 1 2 3 4 --minutes 5 --per-class 20

Both begin with the same DeiT-Ti, draw the same CIFAR-10 images and end with a look at the 10,000
test images. They run at the same time, each with half of the cores, so that whatever disturbs the
machine disturbs both. The plain loop is what most people write: AdamW, a cosine with a short
warm-up, flips, every image learned from. Results gather in OUT/results.jsonl; what is there already
is not run again, so that an interrupted comparison goes on. Needs the extra `dev`, CIFAR-10
(`vitlab data fetch cifar10`) and real weights (`deit.py` says where).
"""

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deit import WEIGHTS
from harness import ROOT

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

CONTESTANTS = ("vitlab", "timm")
BATCH, WEIGHT_DECAY, WARMUP = 32, 0.05, 0.05
TRIAL = 20
"""Updates that tell the plain loop how many fit into its minutes."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""97.5 % quantiles of the t distribution for a mean of so many draws."""


def run_vitlab(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Ours: the command, with nothing chosen but the data and the budget."""
    from vitlab.cli.main import run

    out = options.out / f"vitlab-{seed}"
    words = ["finetune", "--from", str(WEIGHTS), "--data", "cifar10", "--out", str(out)]
    words += ["--minutes", str(options.minutes), "--image-size", str(options.size)]
    words += ["--set", f"images_per_class={options.per_class}", "--set", f"seed={seed}"]
    if out.exists():
        words = ["finetune", "--resume", "--out", str(out)]
    begin = time.monotonic()
    if run(words):
        raise SystemExit(f"{' '.join(words)} failed")
    minutes = (time.monotonic() - begin) / 60
    plan = json.loads((out / "config.json").read_text())
    bundle = json.loads((out / "bundle" / "config.json").read_text())
    return {
        "accuracy": bundle["metrics"]["test_accuracy"],
        "images": plan["steps"] * plan["train"]["batch_size"],
        "minutes": minutes,
    }


def run_timm(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Theirs: a loop over shuffled batches."""
    import torch

    from reference.torchvision_ops import declare
    from vitlab.data.augment.geometry import resize
    from vitlab.data.datasets import open_data
    from vitlab.data.split import draw_per_class

    declare()
    import timm

    torch.manual_seed(seed)
    model = timm.create_model(
        "deit_tiny_patch16_224",
        num_classes=10,
        img_size=options.size,
        pretrained=True,
        pretrained_cfg_overlay={"file": str(WEIGHTS)},
    )
    mean, std = (
        torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) * 255 for key in ("mean", "std")
    )
    source = open_data("cifar10")

    def prepared(images: Any) -> Any:
        return (resize(images, (options.size, options.size), "bicubic") - mean) / std

    drawn = draw_per_class(source.open_train(), options.per_class, seed=seed)
    images, labels = prepared(drawn.images), drawn.labels
    begin = time.monotonic()
    train_plainly(copy.deepcopy(model), images, labels, steps=TRIAL, lr=options.timm_lr)
    steps = int(options.minutes * 60 / ((time.monotonic() - begin) / TRIAL))
    begin = time.monotonic()
    seen = train_plainly(model, images, labels, steps=steps, lr=options.timm_lr)
    minutes = (time.monotonic() - begin) / 60
    test, right = source.open_test(), 0
    model.eval()
    with torch.inference_mode():
        for rows in torch.arange(len(test.labels)).split(250):
            answers = model(prepared(test.images[rows])).argmax(dim=1)
            right += int((answers == test.labels[rows]).sum())
    return {"accuracy": right / len(test.labels), "images": seen, "minutes": minutes}


def train_plainly(network: Any, images: Any, labels: Any, *, steps: int, lr: float) -> int:
    """So many updates; returns how many images they saw."""
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
    warm = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, (1 + math.cos(math.pi * step / steps)) / 2),
    )
    network.train()
    done = seen = 0
    while done < steps:
        for rows in torch.randperm(len(images)).split(BATCH)[: steps - done]:
            mirrored = torch.rand(len(rows), 1, 1, 1) < 0.5
            batch = torch.where(mirrored, images[rows].flip(-1), images[rows])
            loss = torch.nn.functional.cross_entropy(network(batch), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done, seen = done + 1, seen + len(rows)
    return seen


def read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What was found so far, by contestant and seed."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return {(item["contestant"], item["seed"]): item for item in found}


def report(found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Mean and deviation of each, and of the differences on the same draws."""
    lines = []
    for name in CONTESTANTS:
        mine = [item for (who, _), item in found.items() if who == name]
        if not mine:
            continue
        accuracies = [item["accuracy"] for item in mine]
        seen = statistics.mean(item["images"] for item in mine)
        minutes = statistics.mean(item["minutes"] for item in mine)
        lines.append(
            f"{name:7} {spread(accuracies)}  {len(mine)} draws, {seen:,.0f} images seen, "
            f"{minutes:.1f} min"
        )
    seeds = [seed for who, seed in found if who == "vitlab" and ("timm", seed) in found]
    ahead = [found["vitlab", s]["accuracy"] - found["timm", s]["accuracy"] for s in sorted(seeds)]
    if len(ahead) in STUDENT:
        mean = statistics.mean(ahead)
        half = STUDENT[len(ahead)] * statistics.stdev(ahead) / math.sqrt(len(ahead))
        lines.append(
            f"ahead by {mean:.2%}, 95 % interval {mean - half:.2%} to {mean + half:.2%}, "
            f"on the same draws"
        )
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.2%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2%}{deviation}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--timm-lr", type=float, default=3e-4, help="peak rate of the plain loop")
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run what is missing, each contestant in a process of its own, then compare."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    if options.only is not None:
        (seed,) = options.seeds
        found = {"vitlab": run_vitlab, "timm": run_timm}[options.only](seed, options)
        with results.open("a") as file:
            file.write(json.dumps({"contestant": options.only, "seed": seed, **found}) + "\n")
        return
    share = max(1, len(os.sched_getaffinity(0)) // len(CONTESTANTS))
    for seed in options.seeds:
        missing = [name for name in CONTESTANTS if (name, seed) not in read(results)]
        print(f"draw {seed}: {' and '.join(missing) or 'known'}", flush=True)
        running = [
            subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], "--only", name, "--seeds", str(seed)],
                env={**os.environ, "OMP_NUM_THREADS": str(share)},
            )
            for name in missing
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit(f"draw {seed} failed")
    print(report(read(results)))


if __name__ == "__main__":
    main()
