"""Fine-tuning on few images: `vitlab finetune` against a plain timm loop, the same minutes each.

    python benchmarks/finetune.py --out runs/few
    python benchmarks/finetune.py --out runs/few200 --per-class 200 --minutes 8 --tests 2000 \\
        --contestants vitlab before logistic --before ../older-checkout

All begin with the same DeiT-Ti and draw the same CIFAR-10 images, which stand in a folder of PNG
files; the test images are looked at once, at the end. As many contestants run at the same time as
there are cores, one core each, so that whatever disturbs the machine disturbs all. `timm` is what
most people write: AdamW, a cosine with a short warm-up, flips, every image learned from. `logistic`
is a logistic regression on frozen features (`vitlab fewshot`), `before` is `vitlab finetune` of
another checkout. Results gather in OUT/results.jsonl; what is there already is not run again, so
that an interrupted comparison goes on. Needs the extra `dev`, CIFAR-10 (`vitlab data fetch
cifar10`) and real weights (`deit.py` says where).
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deit import WEIGHTS
from harness import ROOT

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

CONTESTANTS = ("vitlab", "timm", "before", "logistic")
BATCH, WEIGHT_DECAY, WARMUP = 32, 0.05, 0.05
TRIAL = 20
"""Updates that tell the plain loop how many fit into its minutes."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""97.5 % quantiles of the t distribution for a mean of so many draws."""


def drawn(seed: int, options: argparse.Namespace) -> tuple[Any, Any]:
    """Training and test images of a draw."""
    from vitlab.data.datasets import open_data
    from vitlab.data.split import draw_per_class

    source = open_data("cifar10")
    train = draw_per_class(source.open_train(), options.per_class, seed=seed)
    return train, draw_per_class(source.open_test(), options.tests // 10, seed=0)


def write_folder(seed: int, options: argparse.Namespace) -> Path:
    """Folder of PNG files of a draw; written once."""
    from PIL import Image

    from vitlab.data.datasets import open_data

    folder: Path = options.out / f"draw-{seed}"
    if folder.exists():
        return folder
    labels, begun = open_data("cifar10").labels, options.out / f"draw-{seed}.part"
    for split, images in zip(("train", "test"), drawn(seed, options), strict=True):
        for number, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
            path = begun / split / labels[int(label)] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return begun.rename(folder)


def command(words: list[str], checkout: Path) -> str:
    """Output of a command of `vitlab`, as it is in this or another checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    words = [sys.executable, "-m", "vitlab", *words]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    return done.stdout


def run_vitlab(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """`vitlab finetune`, with nothing chosen but the data and the budget."""
    name = options.only
    checkout = options.before if name == "before" else ROOT
    out = options.out / f"{name}-{seed}"
    words = ["finetune", "--from", str(WEIGHTS), "--data", str(options.out / f"draw-{seed}")]
    steps = dict(pair.split("=") for pair in options.steps).get(name)
    budget = ["--minutes", str(options.minutes)] if steps is None else ["--steps", steps]
    words += ["--out", str(out), *budget]
    words += ["--image-size", str(options.size), "--set", f"seed={seed}"]
    if out.exists():
        words = ["finetune", "--resume", "--out", str(out)]
    begin = time.monotonic()
    command(words, checkout)
    minutes = (time.monotonic() - begin) / 60
    plan = json.loads((out / "config.json").read_text())
    bundle = json.loads((out / "bundle" / "config.json").read_text())
    return {
        "accuracy": bundle["metrics"]["test_accuracy"],
        "images": plan["steps"] * plan["train"]["batch_size"],
        "minutes": minutes,
    }


def run_logistic(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Logistic regression on the features of all training images."""
    begin = time.monotonic()
    words = ["fewshot", str(WEIGHTS), "--data", str(options.out / f"draw-{seed}"), "--draws", "1"]
    words += ["--shots", str(options.per_class), "--methods", "logistic"]
    printed = command([*words, "--image-size", str(options.size), "--json"], ROOT)
    (score,) = json.loads(printed)["scores"]
    (accuracy,) = score["accuracies"]
    minutes = (time.monotonic() - begin) / 60
    return {"accuracy": accuracy, "images": 10 * options.per_class, "minutes": minutes}


def run_timm(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Theirs: a loop over shuffled batches."""
    import torch

    from reference.torchvision_ops import declare
    from vitlab.data.augment.geometry import resize

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

    def prepared(images: Any) -> Any:
        return (resize(images, (options.size, options.size), "bicubic") - mean) / std

    train, test = drawn(seed, options)
    images, labels = prepared(train.images), train.labels
    begin = time.monotonic()
    train_plainly(copy.deepcopy(model), images, labels, steps=TRIAL, lr=options.timm_lr)
    steps = int(options.minutes * 60 / ((time.monotonic() - begin) / TRIAL))
    begin = time.monotonic()
    seen = train_plainly(model, images, labels, steps=steps, lr=options.timm_lr)
    minutes = (time.monotonic() - begin) / 60
    right = 0
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
            f"{name:8} {spread(accuracies)}  {len(mine)} draws, {seen:,.0f} images seen, "
            f"{minutes:.1f} min"
        )
    for other in CONTESTANTS[1:]:
        ahead = [
            item["accuracy"] - found[other, seed]["accuracy"]
            for (name, seed), item in sorted(found.items())
            if name == CONTESTANTS[0] and (other, seed) in found
        ]
        if len(ahead) in STUDENT:
            mean = statistics.mean(ahead)
            half = STUDENT[len(ahead)] * statistics.stdev(ahead) / math.sqrt(len(ahead))
            lines.append(
                f"vitlab is ahead of {other} by {mean:.2%}, 95 % interval {mean - half:.2%} to "
                f"{mean + half:.2%}, on the same draws"
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
    parser.add_argument(
        "--steps",
        nargs="+",
        default=[],
        metavar="CONTESTANT=N",
        help="of vitlab and before, instead of minutes, where other programs disturb the machine",
    )
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument(
        "--timm-lr", type=float, default=3e-4, help="peak learning rate of the plain loop"
    )
    parser.add_argument("--tests", type=int, default=10_000, help="test images, of all classes")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS[:2])
    parser.add_argument("--before", type=Path, help="checkout of the contestant `before`")
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_alone(job: tuple[str, int]) -> int:
    """Run one contestant on one draw in a process with one thread; return its exit code."""
    name, seed = job
    print(f"{name}, draw {seed}", flush=True)
    words = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--seeds", str(seed)]
    return subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


def main() -> None:
    """Run what is missing, each contestant in a process of its own, then compare."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    if options.only is not None:
        (seed,) = options.seeds
        of_its_own = {"timm": run_timm, "logistic": run_logistic}
        found = of_its_own.get(options.only, run_vitlab)(seed, options)
        with results.open("a") as file:
            file.write(json.dumps({"contestant": options.only, "seed": seed, **found}) + "\n")
        return
    for seed in options.seeds:
        write_folder(seed, options)
    known = read(results)
    jobs = [(name, seed) for seed in options.seeds for name in options.contestants]
    missing = [job for job in jobs if job not in known]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        codes = list(threads.map(run_alone, missing))
        failed = [job for job, code in zip(missing, codes, strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {failed}")
    print(report(read(results)))


if __name__ == "__main__":
    main()
