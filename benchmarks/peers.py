"""The same network in vitlab and in its peers, woken in turn: what `forward` and `training` share.

A ratio is their time divided by ours: above 1 we are faster.
"""

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness import Process, Progress, compete

from vitlab.timing import referee as machine
from vitlab.timing.referee import Contestant, Estimate, Memory, Round, compare, paired_ratios

Work = Literal["forward", "training"]

OURS = {"timm": "vitlab", "transformers": "vitlab", "vit-pytorch": "vitlab (vit-pytorch's net)"}
"""Each peer's opponent: vit-pytorch has norms around its patches and no bias for queries."""
TOLERANCE = 1e-4
"""Logits and losses here are of the order of 1; float32 loses 1e-5 in twelve layers."""


def contestants(work: Work, model: str, peers: list[str], folder: str) -> list[Contestant]:
    """The peers, our side of each comparison, and the machine itself."""
    names = [*sorted({OURS[peer] for peer in peers}), *peers]
    rivals = [
        Contestant(
            name=name,
            factory=f"networks:{work}",
            arguments={"network": name, "folder": folder, "model": model},
        )
        for name in names
    ]
    return [*rivals, machine.machine()]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What was measured for one model at one batch size."""

    model: str
    batch: int
    flops: int
    rounds: list[Round]
    memory: dict[str, Memory]

    @property
    def label(self) -> str:
        """Short name for tables."""
        return f"{self.model} b{self.batch}"

    def milliseconds(self, name: str) -> float:
        """Median time of one call."""
        return 1e3 * statistics.median(turns[name].seconds for turns in self.rounds)

    def share_of_sgemm(self, name: str) -> float:
        """Speed in FLOP/s against that of a large matrix product in the same round."""
        return machine.share_of_limit(self.rounds, name, self.flops)

    def against(self, peer: str) -> list[float]:
        """Paired ratios, one per round."""
        return paired_ratios(self.rounds, OURS[peer], peer)


def measure(
    work: Work, model: str, batch: int, options: argparse.Namespace, progress: Progress
) -> Setting:
    """One model at one batch size, everybody in turn."""
    peers: list[str] = options.peers
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model": model, "batch": batch, "folder": folder}
        preparation = Contestant(
            name="preparation", factory="networks:prepare", arguments=arguments
        )
        with Process(preparation, threads=options.threads) as process:
            told = process.result()
        rounds, memory = compete(
            contestants(work, model, peers, folder),
            rounds=options.rounds,
            threads=options.threads,
            seconds=options.seconds,
            seed=options.seed,
            check=lambda results: check_agreement(results, peers),
            progress=progress.round,
        )
    passes = 3 if work == "training" else 1
    flops = passes * told["flops"]
    return Setting(model=model, batch=batch, flops=flops, rounds=rounds, memory=memory)


def check_agreement(results: dict[str, Any], peers: list[str]) -> None:
    """Refuse to time networks that do not compute the same."""
    for peer in peers:
        check_equal(peer, results[OURS[peer]], results[peer])


def check_equal(peer: str, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Exit if the rows of two results differ by more than `TOLERANCE`."""
    errors = [
        abs(a - b)
        for row, other in zip(ours, theirs, strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    if not all(error <= TOLERANCE for error in errors):  # not a number is no agreement either
        raise SystemExit(f"{peer}: results differ from ours by {max(errors):.2g}")


def report(settings: list[Setting], peers: list[str]) -> str:
    """A table per peer; no ranking where the interval holds 1."""
    return "\n\n".join(_peer_table(settings, peer) for peer in peers)


def _peer_table(settings: list[Setting], peer: str) -> str:
    head = (
        "",
        "ours ms",
        "theirs ms",
        "ratio",
        "95 % interval",
        "ours MB",
        "theirs MB",
        "of sgemm",
    )
    lines: list[tuple[str, ...]] = [head]
    for setting in settings:
        ours, theirs = OURS[peer], peer
        shares = (f"{setting.share_of_sgemm(name):.0%}" for name in (ours, theirs))
        memories = (f"{setting.memory[name].ever / 1e6:.0f}" for name in (ours, theirs))
        times = (f"{setting.milliseconds(name):.1f}" for name in (ours, theirs))
        found = _estimate_cells(compare([setting.against(peer)]))
        lines.append((setting.label, *times, *found, *memories, " / ".join(shares)))
    whole = compare([setting.against(peer) for setting in settings])
    lines.append(("geometric mean", "", "", *_estimate_cells(whole), "", "", ""))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([f"vitlab against {peer}: {whole.verdict}", *texts])


def _estimate_cells(found: Estimate) -> tuple[str, str]:
    return f"{found.ratio:.3f}", f"{found.low:.3f} to {found.high:.3f}"


def _finite(found: Estimate) -> dict[str, float | None]:
    """JSON has no infinity: an interval without end has none."""
    return {name: v if math.isfinite(v) else None for name, v in asdict(found).items()}


def as_json(settings: list[Setting], peers: list[str], options: argparse.Namespace) -> Any:
    """Everything that was measured, and what it was measured on."""
    return {
        "machine": {"processor": platform.processor(), "system": platform.platform()},
        "options": {**vars(options), "json": str(options.json)},
        "peers": {
            peer: _finite(compare([setting.against(peer) for setting in settings]))
            for peer in peers
        },
        "disturbances": disturbances(settings),
        "settings": [
            {
                **asdict(setting),
                "milliseconds": {name: setting.milliseconds(name) for name in setting.memory},
                "share_of_sgemm": {name: setting.share_of_sgemm(name) for name in setting.memory},
            }
            for setting in settings
        ],
    }


def disturbances(settings: list[Setting]) -> list[str]:
    """What makes the figures doubtful: a machine with other work, contestants that do not sleep."""
    return [
        f"{setting.label}: {found}"
        for setting in settings
        for found in machine.disturbances(setting.rounds)
    ]


def parser(description: str, *, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """The command line of a contest, to which it adds what it measures."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    found.add_argument("--peers", nargs="+", default=list(OURS), choices=OURS)
    found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument("--seconds", type=float, default=seconds, help="length of a turn, about")
    found.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    found.add_argument("--seed", type=int, default=0, help="of the order of turns")
    found.add_argument("--json", type=Path, help="write everything measured here")
    return found


def run(work: Work, settings: Sequence[tuple[str, int]], options: argparse.Namespace) -> None:
    """Measure every model and batch size, print the tables."""
    progress = Progress(len(settings))
    found = []
    for model, batch in settings:
        progress.start(f"{model} b{batch}")
        found.append(measure(work, model, batch, options, progress))
    print(f"\n{report(found, options.peers)}")
    for disturbance in disturbances(found):
        print(f"warning: {disturbance}; measure again before quoting this")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(found, options.peers, options), indent=1))
