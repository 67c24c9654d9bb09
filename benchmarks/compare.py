"""Several models on CIFAR-10, the same minutes for each: `vitlab train`, as a user would run it.

    python benchmarks/compare.py --out runs/compare --minutes 30
    python benchmarks/compare.py --out runs/compare --minutes 30 --seeds 0 1 2 --only vit_seed

Each run is a command of its own, alone on its cores (`OMP_NUM_THREADS=1 taskset -c 0` leaves room
for another with other contestants), and ends with its one look at the test images.
OUT/results.jsonl gathers a line for each; what is there is not run again, and a run that was broken
off is resumed. OUT/table.md and OUT/compare.png show what is known so far. Needs the extra `plots`,
and CIFAR-10 (`vitlab data fetch cifar10`).
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT

from vitlab.machine.device import cores


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A recipe, and what is changed in it."""

    recipe: str
    changes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Arguments of `vitlab train`."""
        return [self.recipe, *(word for change in self.changes for word in ("--set", change))]


CONTESTANTS = {
    "cnn_tutorial": Contestant(recipe="default", changes=("model=cnn_tutorial",)),
    "resnet18_cifar": Contestant(recipe="default", changes=("model=resnet18_cifar",)),
    "vit_seed": Contestant(recipe="seed"),
    "cifar10_pure": Contestant(recipe="cifar10_pure"),
    "cifar10_30min": Contestant(recipe="cifar10_30min"),
}
Call = Callable[[list[str]], str]
"""Runs a command and returns what it printed; raises CalledProcessError."""
Result = dict[str, Any]


def run_command(words: list[str]) -> str:
    """A command of this checkout; what it says of its progress goes to the screen."""
    print("$", shlex.join(words[1:]), flush=True)
    known = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": known},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def train(name: str, seed: int, options: argparse.Namespace, call: Call = run_command) -> Result:
    """What came of one run, which is begun, resumed or found finished."""
    run, vitlab = options.out / f"{name}-{seed}", [sys.executable, "-m", "vitlab"]
    begun = (run / "config.json").is_file()
    if begun and not (run / "bundle" / "config.json").is_file():
        call([*vitlab, "train", "--resume", "--out", str(run), "--json"])
    elif not begun:
        budget = (
            ["--minutes", options.minutes] if options.steps is None else ["--steps", options.steps]
        )
        words = [*CONTESTANTS[name].words, "--data", options.data, "--out", run, "--seed", seed]
        extra = [word for change in options.set for word in ("--set", change)]
        call([*vitlab, "train", *map(str, [*words, *budget, *extra]), "--json"])
    found = json.loads(call([sys.executable, str(ROOT / "scripts" / "result-of"), str(run)]))
    return {"contestant": name, **found}


def read(path: Path) -> list[Result]:
    """What was found so far; a line that a crash cut off does not count."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def run_missing(options: argparse.Namespace, call: Call = run_command) -> list[str]:
    """Run what is not in the results yet; the names of those that failed."""
    results, failed = options.out / "results.jsonl", []
    for seed in options.seeds:
        for name in options.only:
            known = {(line["contestant"], line["seed"]) for line in read(results)}
            if (name, seed) in known:
                print(f"{name}, seed {seed}: known", flush=True)
                continue
            try:
                found = train(name, seed, options, call)
            except subprocess.CalledProcessError as error:
                failed.append(f"{name}, seed {seed} (exit code {error.returncode})")
                continue
            append(results, found)
    return failed


def append(path: Path, found: Result) -> None:
    """One line more, whatever the last one was cut off by."""
    before = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write(
            ("\n" if before and not before.endswith("\n") else "") + json.dumps(found) + "\n"
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a contestant's runs came to."""

    name: str
    runs: int
    accuracy: float
    low: float
    high: float
    """95 % interval of one run by the test images; of several, their deviation around the mean."""
    held_out: float | None
    pflops: float
    minutes: float
    images: float
    parameters: int
    encoder_share: float


def scores(results: Sequence[Result]) -> list[Score]:
    """The best first."""
    found = []
    for name in dict.fromkeys(line["contestant"] for line in results):
        mine = [line for line in results if line["contestant"] == name]
        accuracies = [line["test_accuracy"] for line in mine]
        mean = statistics.fmean(accuracies)
        low, high = mine[0]["test_interval"]
        if len(mine) > 1:
            deviation = statistics.stdev(accuracies)
            low, high = mean - deviation, mean + deviation
        held_out = [line["held_out_accuracy"] for line in mine]
        found.append(
            Score(
                name=name,
                runs=len(mine),
                accuracy=mean,
                low=low,
                high=high,
                held_out=None if None in held_out else statistics.fmean(held_out),
                pflops=_mean(line["pflops"] for line in mine),
                minutes=_mean(line["minutes"] for line in mine),
                images=_mean(line["images_seen"] for line in mine),
                parameters=mine[0]["parameters"],
                encoder_share=mine[0]["encoder_share"],
            )
        )
    return sorted(found, key=lambda score: -score.accuracy)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def table(found: Sequence[Score]) -> str:
    """Markdown."""
    head = (
        "| | command | parameters | encoder's share of FLOPs | images seen | compute | minutes | "
        "held out | test accuracy |"
    )
    lines = [head, "|---|---|--:|--:|--:|--:|--:|--:|--:|"]
    for score in found:
        spread = f"{score.low:.1%} to {score.high:.1%}"
        if score.runs > 1:
            spread = f"± {score.high - score.accuracy:.2%}, {score.runs} seeds"
        held_out = "–" if score.held_out is None else f"{score.held_out:.2%}"
        command = f"`vitlab train {shlex.join(CONTESTANTS[score.name].words)}`"
        cells = (
            *(score.name, command, f"{score.parameters / 1e6:.2f} M", f"{score.encoder_share:.0%}"),
            *(f"{score.images:,.0f}", f"{score.pflops:.3g} PFLOPs", f"{score.minutes:.1f}"),
            *(held_out, f"{score.accuracy:.2%} ({spread})"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Score], path: Path, title: str) -> None:
    """Accuracy as bars with their interval, and the compute beside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 1.6 + 0.55 * len(found)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.4))
    names, places = [score.name for score in found], range(len(found))
    accuracy = [100 * score.accuracy for score in found]
    errors = [
        [100 * (score.accuracy - score.low) for score in found],
        [100 * (score.high - score.accuracy) for score in found],
    ]
    left.barh(places, accuracy, color="#0072b2", height=0.6)
    left.errorbar(accuracy, places, xerr=errors, fmt="none", ecolor="black", capsize=4)
    for place, score in zip(places, found, strict=True):
        left.text(100 * score.high + 1.5, place, f"{score.accuracy:.1%}", va="center")
        right.text(score.pflops, place, f" {score.pflops:.3g}", va="center")
    right.barh(places, [score.pflops for score in found], color="#e69f00", height=0.6)
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlim(0, min(112, 1.18 * max(100 * score.high for score in found)))
    right.set_xlim(0, 1.35 * max(score.pflops for score in found))
    several = any(score.runs > 1 for score in found)
    left.set_xlabel(
        f"test accuracy in % ({'deviation over seeds' if several else '95 % interval'})"
    )
    right.set_xlabel("compute in PFLOPs")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(left=False)
    figure.savefig(path, dpi=160)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--steps", type=int, help="updates instead of minutes, to try it out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, call: Call = run_command) -> int:
    """Run what is missing, then show everything that is known."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = run_missing(options, call)
    found = scores(read(options.out / "results.jsonl"))
    if found:
        budget = (
            f"{options.minutes:g} minutes" if options.steps is None else f"{options.steps} steps"
        )
        (options.out / "table.md").write_text(table(found))
        share = f"{budget} of {cores()} core{'s' if cores() > 1 else ''} for each"
        draw(found, options.out / "compare.png", f"{options.data}, {share}")
        print(table(found))
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
