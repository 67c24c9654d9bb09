"""Inference on the CPU: vitlab's default engine against everything else that runs the same weights.

    python benchmarks/inference.py
    python benchmarks/inference.py --only vit_ti16 vit_b16:8 --rounds 12 --seconds 2
    python benchmarks/inference.py --report

Against timm, timm with torch.compile (frozen), transformers, vit-pytorch, and plain exports in ONNX
Runtime and OpenVINO. Nothing is timed unless all logits agree within 0.001. A ratio is their time
divided by ours: above 1 we are faster. Each cell (a model at a batch size) is a line of --out; what
is there is not measured again. Needs the extras `dev` and `export`, and OpenVINO.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from compare import append, read
from harness import Process, Progress, compete

from vitlab.config import from_dict, to_dict
from vitlab.jobs.benchmark.job import compared
from vitlab.jobs.benchmark.prepare import DEFAULT_ENGINE, IMAGES, Prepared, prepared
from vitlab.jobs.benchmark.result import Cell, Entry
from vitlab.timing.referee import MACHINE, Contestant, Estimate, compare, machine, paired_ratios

MODELS = ("vit_ti16", "vit_s16", "vit_b16")
BATCHES = (1, 8, 64)
OURS = "vitlab"
TWIN = "vitlab (vit-pytorch's net)"
LIBRARIES = ("timm", "transformers", "vit-pytorch")
EXPORTS = {"onnxruntime": "plain_onnxruntime", "openvino": "plain_openvino"}
RIVALS = ("timm", "timm compiled", "transformers", "vit-pytorch", *EXPORTS)
ONNX = "timm.onnx"
BELOW = 0.95
"""No cell's interval may lie wholly below this."""
TIMM_LIMIT, FASTEST_LIMIT, LARGE = 1.25, 1.0, 64


def export(folder: str, config: dict[str, Any], batch: int) -> Any:
    """Write timm's network as torch exports it, without anything done to it afterwards."""
    import torch
    from libraries import open_peer, prepared_images

    place = Path(folder)
    network, images = open_peer("timm", folder, config), prepared_images(folder, batch)
    with torch.inference_mode():
        torch.onnx.export(
            network,
            (images,),
            str(place / ONNX),
            input_names=["images"],
            output_names=["logits"],
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return lambda: (place / ONNX).stat().st_size


def compiled_timm(folder: str, config: dict[str, Any], batch: int) -> Any:
    """timm with torch.compile, its weights frozen into the graph."""
    import torch
    import torch._inductor.config
    from libraries import open_peer, prepared_images

    torch._inductor.config.freezing = True
    images = prepared_images(folder, batch)
    fast = torch.compile(open_peer("timm", folder, config))

    def call() -> Any:
        with torch.no_grad():
            return fast(images)

    call()
    return call


def plain_onnxruntime(folder: str, batch: int, threads: int) -> Any:
    """The export in one session."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(Path(folder) / ONNX), options, providers=["CPUExecutionProvider"]
    )
    images = np.load(Path(folder) / IMAGES)[:batch]
    return lambda: session.run(None, {"images": images})[0]


def plain_openvino(folder: str, batch: int, threads: int) -> Any:
    """The export, compiled for the processor in float32."""
    import numpy as np
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.Core().compile_model(str(Path(folder) / ONNX), "CPU", settings)
    images = np.load(Path(folder) / IMAGES)[:batch]
    return lambda: network([images])[0]


def measure(
    model: str, batch: int, options: argparse.Namespace, progress: Progress, folder: str
) -> Cell:
    """One cell: everybody on the same images."""
    wanted = [name for name in LIBRARIES if name in options.rivals or name == "timm"]
    settings = {"model": model, "folder": folder, "peers": wanted, "batch": batch}
    pairs_of = _result("libraries:prepare", settings, options)
    networks = [(prepared(facts), tuple(peers)) for facts, peers in pairs_of]
    plain, _ = networks[0]
    if set(EXPORTS) & set(options.rivals):
        shared = {"folder": plain.folder, "config": plain.config, "batch": batch}
        _result("inference:export", shared, options)
    by_model = {network.name: network for network, _ in networks}
    pairs = list(_pairs(networks, batch, options))
    entries = tuple(entry for entry, _ in pairs)
    differences: dict[str, float] = {}
    rounds, memory = compete(
        [*(contestant for _, contestant in pairs), machine()],
        rounds=options.rounds,
        threads=options.threads,
        seconds=options.seconds,
        seed=options.seed,
        check=lambda results: differences.update(compared(results, entries, by_model)),
        progress=progress.round,
    )
    used = {name: peak for name, peak in memory.items() if name != MACHINE}
    return Cell(batch=batch, entries=entries, rounds=rounds, memory=used, differences=differences)


def _result(factory: str, arguments: dict[str, Any], options: argparse.Namespace) -> Any:
    """Result of a process that only prepares something."""
    contestant = Contestant(name="preparation", factory=factory, arguments=arguments)
    with Process(contestant, threads=options.threads) as process:
        return process.result()


def _pairs(
    networks: Sequence[tuple[Prepared, tuple[str, ...]]], batch: int, options: argparse.Namespace
) -> Iterator[tuple[Entry, Contestant]]:
    """Entries of vitlab, then of the requested rivals, each with its contestant."""
    (plain, _), *twins = networks
    yield _pair(OURS, plain, "ours", batch)
    for twin, _ in twins:
        yield _pair(TWIN, twin, "ours", batch, original=TWIN)
    for name in options.rivals:
        if name == "timm compiled":
            arguments = {"config": plain.config}
            yield _pair(name, plain, "inference:compiled_timm", batch, **arguments)
        elif name in EXPORTS:
            factory = f"inference:{EXPORTS[name]}"
            yield _pair(name, plain, factory, batch, threads=options.threads)
        else:
            own = next(network for network, peers in networks if name in peers)
            original = OURS if own is plain else TWIN
            yield _pair(name, own, "theirs", batch, original=original)


def _pair(
    name: str, model: Prepared, factory: str, batch: int, *, original: str = OURS, **more: Any
) -> tuple[Entry, Contestant]:
    arguments: dict[str, Any] = {"folder": model.folder, "batch": batch, **more}
    if factory == "ours":
        arguments |= {
            "place": model.places[DEFAULT_ENGINE],
            "engine": DEFAULT_ENGINE,
            "merge_tokens": 0,
        }
    elif factory == "theirs":
        arguments |= {"name": name, "config": model.config}
    known = {"ours": "vitlab.jobs.benchmark.prepare:engine", "theirs": "libraries:peer"}
    factory = known.get(factory, factory)
    entry = Entry(
        name=name,
        model=model.name,
        runs=DEFAULT_ENGINE if name in (OURS, TWIN) else name,
        merge_tokens=0,
        reference=original,
        original=original,
        exact=True,
        parameters=model.parameters,
        flops=model.flops[0],
        bytes=model.bytes,
        fresh=True,
        ours=name in (OURS, TWIN),
    )
    return entry, Contestant(name=name, factory=factory, arguments=arguments)


def rivals_of(cell: Cell) -> list[Entry]:
    """All but ours."""
    return [entry for entry in cell.entries if not entry.ours]


def ratios(cell: Cell, name: str) -> list[float]:
    """How many times as fast as a rival we were, round by round, on the rival's weights."""
    entry = next(entry for entry in cell.entries if entry.name == name)
    return paired_ratios(cell.rounds, entry.original, name)


def fastest(cell: Cell) -> str:
    """The rival whom we gain the least from."""
    return min(rivals_of(cell), key=lambda entry: compare([ratios(cell, entry.name)]).ratio).name


def report(cells: Sequence[tuple[str, Cell]]) -> str:
    """A table for each cell, then what all of them come to."""
    return "\n\n".join([*(_table(label, cell) for label, cell in cells), summary(cells)])


def _table(label: str, cell: Cell) -> str:
    lines = [f"{label}, times faster than", f"  {'':26} {'ms':>9} {'MB':>6} {'of limit':>8}"]
    for entry in cell.entries:
        line = f"  {entry.name:26} {1e3 * cell.seconds(entry.name):9.1f}"
        line += f" {cell.memory[entry.name].ever / 1e6:6.0f} {cell.share_of_limit(entry):8.0%}"
        if not entry.ours:
            line += f"  {_shown(compare([ratios(cell, entry.name)]))}"
        lines.append(line)
    lines += [f"  warning: {found}; measure again" for found in cell.disturbances]
    return "\n".join(lines)


def summary(cells: Sequence[tuple[str, Cell]]) -> str:
    """Geometric means with intervals, cells that are lost, and memory."""
    best = compare([ratios(cell, fastest(cell)) for _, cell in cells])
    lines = [f"against the fastest of each cell: {_shown(best)}, at least {FASTEST_LIMIT} wanted"]
    names = {entry.name for _, cell in cells for entry in rivals_of(cell)}
    for name in (name for name in RIVALS if name in names):
        met = [cell for _, cell in cells if name in cell.memory]
        line = f"against {name}: {_shown(compare([ratios(cell, name) for cell in met]))}"
        lines.append(line + (f", at least {TIMM_LIMIT} wanted" if name == "timm" else ""))
    for label, cell in cells:
        name = fastest(cell)
        found = compare([ratios(cell, name)])
        if found.high < BELOW:
            lines.append(f"lost: {label} against {name}: {_shown(found)}")
        if cell.batch == LARGE and "onnxruntime" in cell.memory:
            ours, theirs = (cell.memory[who].ever / 1e6 for who in (OURS, "onnxruntime"))
            verdict = "kept" if ours <= theirs else "missed"
            lines.append(f"memory, {label}: {ours:.0f} MB, onnxruntime {theirs:.0f}: {verdict}")
    return "\n".join(lines)


def _shown(found: Estimate) -> str:
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def chosen(words: Sequence[str]) -> list[tuple[str, int]]:
    """The cells that are meant by names of models, alone or with a batch size."""
    cells = list(product(MODELS, BATCHES))
    found = []
    for word in words:
        model, colon, batch = word.partition(":")
        meant = [cell for cell in cells if cell[0] == model and batch in ("", str(cell[1]))]
        if not meant or (colon and not batch):
            raise SystemExit(
                f"--only {word}: no such cell; valid: {', '.join(MODELS)}, alone or with one of "
                f"{', '.join(f':{size}' for size in BATCHES)}"
            )
        found += meant
    return found


def key(model: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same for a cell not to be measured again."""
    return {
        "model": model,
        "batch": batch,
        "threads": options.threads,
        "engine": DEFAULT_ENGINE,
        "rivals": list(options.rivals),
    }


def known_cells(options: argparse.Namespace) -> dict[str, Cell]:
    """What the file holds of the cells that are meant; of one measured twice, the last."""
    keys = {f"{model} b{batch}": key(model, batch, options) for model, batch in options.cells}
    lines = read(options.out)
    return {
        label: from_dict(Cell, line["cell"])
        for label, wanted in keys.items()
        for line in lines
        if line["key"] == wanted
    }


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(MODELS), help="vit_ti16, or vit_ti16:8")
    parser.add_argument("--rivals", nargs="+", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn, about")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--out", type=Path, default=Path("runs/inference.jsonl"))
    parser.add_argument("--report", action="store_true", help="measure nothing, tell what is known")
    options = parser.parse_args(words)
    options.cells = chosen(options.only)
    return options


def main() -> None:
    """Measure what is not known yet, and tell what is."""
    options = parse()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    missing = [
        (model, batch)
        for model, batch in options.cells
        if f"{model} b{batch}" not in known_cells(options)
    ]
    progress = Progress(len(missing))
    for model, batch in [] if options.report else missing:
        progress.start(f"{model} b{batch}")
        with tempfile.TemporaryDirectory() as folder:
            cell = measure(model, batch, options, progress, folder)
        append(options.out, {"key": key(model, batch, options), "cell": to_dict(cell)})
    known = known_cells(options)
    if not known:
        raise SystemExit(f"{options.out}: no such cell yet")
    print(f"\n{report(list(known.items()))}")


if __name__ == "__main__":
    main()
