"""What merging tokens costs DeiT-Ti in accuracy and gains in speed, in torch and as ONNX files.

    python benchmarks/merge_tokens.py --out runs/merge_tokens
    python benchmarks/merge_tokens.py --out trial --images 50 --rounds 2 --numbers 0 8
    python benchmarks/merge_tokens.py --out runs/merge_tokens --report

For each R: accuracy on photos, how many get the class that they get without merging, the change of
accuracy photo by photo with its 95 % interval, and images a second, in contests of all R of both
engines at once. OUT keeps the exported files, the answers (answers.jsonl) and the contests
(speed.jsonl); what is there is not measured again. OUT/table.md and OUT/curve.png show it.
Needs the extras `export` and `plots`, and real weights and photos (`deit.py` says where).
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from compare import append, read
from deit import BATCH, WEIGHTS, photos
from harness import Progress
from numpy.typing import NDArray

from vitlab.config import from_dict, to_dict
from vitlab.jobs.benchmark.job import benchmark, changed
from vitlab.jobs.benchmark.plan import Plan
from vitlab.jobs.benchmark.plot import draw_curve
from vitlab.jobs.benchmark.result import Accuracy, Benchmark, Cell
from vitlab.jobs.export import export
from vitlab.report.plots import check_matplotlib, rendered, styled
from vitlab.timing.referee import Estimate

NUMBERS = (0, 4, 8, 12, 13, 16, 20)
ENGINES = {"torch": "DeiT-Ti", "onnxruntime": "DeiT-Ti exported"}
"""What the model is called in each engine."""
Answers = dict[tuple[str, int], NDArray[np.int64]]
"""The class of each photo, by engine and number of merged tokens."""
Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def file_of(out: Path, number: int) -> Path:
    """Where the exported model is kept."""
    return out / f"deit-r{number}.onnx"


def opened(engine: str, number: int, out: Path) -> Run:
    """Photos to logits."""
    if engine == "onnxruntime":
        from vitlab.classify.engines.runtimes import run_onnx

        return run_onnx(file_of(out, number))
    import torch

    from vitlab import load

    classifier = load(WEIGHTS, merge_tokens=number)
    return lambda images: classifier.probabilities(torch.from_numpy(images)).numpy()


def answer(run: Run, images: NDArray[np.float32]) -> list[int]:
    """The likeliest class of each photo."""
    parts = [run(images[first : first + BATCH]) for first in range(0, len(images), BATCH)]
    return [int(number) for part in parts for number in part.argmax(axis=1)]


def ask_missing(options: argparse.Namespace, progress: Progress) -> None:
    """Answers that are not known yet, each as a line of its own."""
    asked = [(engine, number) for number in options.numbers for engine in ENGINES]
    missing = [pair for pair in asked if pair not in known_answers(options)[1]]
    images, truth = photos(options.images) if missing else (None, None)
    for engine, number in missing:
        progress.start(f"answers of {engine}, R={number}")
        assert images is not None
        assert truth is not None
        told = answer(opened(engine, number, options.out), images)
        key = {"engine": engine, "number": number, "images": options.images}
        line = {"key": key, "answers": told, "truth": truth.tolist()}
        append(options.out / "answers.jsonl", line)


def known_answers(options: argparse.Namespace) -> tuple[NDArray[np.int64], Answers]:
    """The true classes, and what is known of those that were asked for."""
    truth, found = np.zeros(0, np.int64), {}
    for line in read(options.out / "answers.jsonl"):
        key = line["key"]
        if key["images"] == options.images and key["number"] in options.numbers:
            found[key["engine"], key["number"]] = np.array(line["answers"])
            truth = np.array(line["truth"])
    return truth, found


def race_missing(options: argparse.Namespace, progress: Progress) -> None:
    """A contest of all of them at each batch size that was none of yet."""
    for batch in options.batch:
        if batch in known_cells(options):
            continue
        progress.start(f"batch of {batch}")
        plan = Plan(
            models=(str(WEIGHTS), *(str(file_of(options.out, n)) for n in options.numbers)),
            engines=("torch",),
            batches=(batch,),
            merge_tokens=tuple(options.numbers),
            rounds=options.rounds,
            seconds=options.seconds,
            threads=options.threads,
            seed=options.seed,
        )
        found = benchmark(plan, watch=lambda _, done, rounds: progress.round(done, rounds))
        line = {
            "key": race_key(batch, options),
            "machine": found.machine,
            "cell": to_dict(found.cells[0]),
        }
        append(options.out / "speed.jsonl", line)


def race_key(batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same for a contest not to be held again."""
    told = ("numbers", "rounds", "seconds", "threads", "seed")
    return {"batch": batch, **{name: getattr(options, name) for name in told}}


def known_cells(options: argparse.Namespace) -> dict[int, Cell]:
    """The contests that were held as they are asked for, by batch size."""
    lines = read(options.out / "speed.jsonl")
    return {
        batch: named(from_dict(Cell, line["cell"]))
        for batch in options.batch
        for line in lines
        if line["key"] == race_key(batch, options)
    }


def named(cell: Cell) -> Cell:
    """The exported files as what they are: one model in another engine."""
    entries = tuple(replace(entry, model=ENGINES[entry.runs]) for entry in cell.entries)
    return replace(cell, entries=entries)


def judged(truth: NDArray[np.int64], found: Answers) -> Iterator[Accuracy]:
    """Accuracies, and their change from the first number of the same engine."""
    first: dict[str, NDArray[np.float64]] = {}
    for (engine, number), classes in sorted(found.items(), key=lambda item: item[0][1]):
        right = (classes == truth).astype(np.float64)
        accuracy, bounds = changed(right)
        change, change_bounds = changed(right - first.setdefault(engine, right))
        yield Accuracy(
            model=ENGINES[engine],
            merge_tokens=number,
            images=len(truth),
            accuracy=accuracy,
            interval=bounds,
            change=change,
            change_interval=change_bounds,
        )


def table(whole: Benchmark, found: Answers) -> str:
    """Markdown: a table for each batch size."""
    return "\n\n".join(
        f"Batch of {cell.batch}\n\n" + "\n".join(_lines(whole, cell, found)) for cell in whole.cells
    )


def _lines(whole: Benchmark, cell: Cell, found: Answers) -> Iterator[str]:
    head = (
        *("engine", "R", "images/s", "times as fast as R=0", "accuracy"),
        *("change in points (95 %)", "same class as R=0", "same class as torch"),
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" + "|--:" * (len(head) - 1) + "|"
    for engine in ENGINES:
        entries = [entry for entry in cell.entries if entry.runs == engine]
        for entry in entries:
            told = whole.accuracy(entry)
            assert told is not None
            low, high = (100 * bound for bound in told.change_interval)
            number, plain = entry.merge_tokens, entries[0].merge_tokens
            mine = found[engine, number]
            cells = (
                *(engine, f"{number}", f"{cell.images_per_second(entry.name):.1f}"),
                _shown(cell.against(entry.name, entries[0].name)) if number != plain else "1",
                f"{told.accuracy:.2%}",
                f"{100 * told.change:+.2f} ({low:+.2f} to {high:+.2f})" if number != plain else "-",
                f"{(mine == found[engine, plain]).mean():.2%}",
                f"{(mine == found['torch', number]).mean():.2%}",
            )
            yield f"| {' | '.join(cells)} |"
    yield from (f"\nWarning: {line}; measure again." for line in cell.disturbances)


def _shown(found: Estimate) -> str:
    if found.low <= 0:
        return f"{found.ratio:.3f} (too few rounds)"
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/merge_tokens"))
    parser.add_argument("--numbers", type=int, nargs="+", default=list(NUMBERS), metavar="R")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn, about")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--report", action="store_true", help="measure nothing, tell what is known")
    options = parser.parse_args(words)
    if options.numbers[0] != 0 or len(set(options.numbers)) < len(options.numbers):
        parser.error("--numbers: 0 first, and each once")
    return options


def main() -> None:
    """Measure what is not known yet, and tell what is."""
    options = parse()
    check_matplotlib()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        for number in options.numbers:
            if not file_of(options.out, number).exists():
                export(WEIGHTS, output=file_of(options.out, number), merge_tokens=number)
        ask_missing(options, Progress(len(ENGINES) * len(options.numbers)))
        race_missing(options, Progress(len(options.batch)))
    truth, found = known_answers(options)
    cells = known_cells(options)
    if not cells or len(found) < len(ENGINES) * len(options.numbers):
        raise SystemExit(f"{options.out}: not everything is measured yet")
    whole = Benchmark(
        cells=tuple(cells.values()),
        machine={},
        threads=options.threads,
        accuracies=tuple(judged(truth, found)),
    )
    text = table(whole, found)
    (options.out / "table.md").write_text(text + "\n")
    with styled():
        (options.out / "curve.png").write_bytes(rendered(draw_curve(whole), "png"))
    print(f"{text}\n\n{len(truth)} photos; {options.out / 'curve.png'}")


if __name__ == "__main__":
    main()
