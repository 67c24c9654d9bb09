"""What explaining costs: `rollout` and `relevance` against a plain forward pass of the same model.

    python benchmarks/explain.py
    python benchmarks/explain.py --models vit_ti16 vit_s16 --batch 8 --rounds 30 --json explain.json

Time: forward, rollout and relevance of a batch, each in a process of its own, woken in turn; ratios
are taken within a round. Memory: one image of a large size, the peak of a process that does nothing
else. Weights are random: they change neither.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import Process, Progress, compete

from vitlab.timing.referee import Contestant, Estimate, Round, compare, paired_ratios, quantile

FORWARD = "forward"
LIMITS = {"rollout": 1.6, "relevance": 4.0}
"""Times a forward pass that a method may take."""
MEMORY_LIMIT = 3e9
"""Bytes that a process may reach with one large image."""


def explaining(
    method: str, model: str, batch: int, size: int | None = None
) -> Callable[[], list[float]]:
    """A forward pass, or one method's maps, of a batch of random images."""
    import torch

    import vitlab
    from vitlab.explain.methods import explain
    from vitlab.explain.request import ExplainRequest

    torch.manual_seed(0)
    changes = {} if size is None else {"image_size": size}
    network: Any = vitlab.create_model(model, **changes).eval()
    torch.nn.init.normal_(network.head.weight, std=0.02)
    height = width = network.config.image_size
    images = torch.randn(batch, network.config.channels, height, width)

    def forward() -> list[float]:
        with torch.inference_mode():
            return network.logits(images)[:, 0].tolist()

    def explained() -> list[float]:
        answer = explain(network, images, ExplainRequest(method=method))
        return answer.logits[:, 0].tolist()

    return forward if method == FORWARD else explained


def measure(model: str, batch: int, options: argparse.Namespace, progress: Progress) -> list[Round]:
    """Rounds in which everybody had a turn."""
    contestants = [
        Contestant(
            name=name,
            factory="explain:explaining",
            arguments={"method": name, "model": model, "batch": batch},
        )
        for name in (FORWARD, *LIMITS)
    ]
    rounds, _ = compete(
        contestants,
        rounds=options.rounds,
        threads=options.threads,
        seconds=options.seconds,
        seed=options.seed,
        check=check_agreement,
        progress=progress.round,
    )
    return rounds


def check_agreement(results: dict[str, list[float]]) -> None:
    """Refuse to time what does not come from the same forward pass."""
    for name, found in results.items():
        errors = [abs(a - b) for a, b in zip(found, results[FORWARD], strict=True)]
        # Of logits about 1; not a number is no agreement either.
        if not all(error < 1e-4 for error in errors):
            raise SystemExit(f"{name}: logits differ from a forward pass's by {max(errors):.2g}")


def peak_memory(method: str, options: argparse.Namespace) -> int:
    """Bytes that a process reaches which explains one large image."""
    contestant = Contestant(
        name=method,
        factory="explain:explaining",
        arguments={
            "method": method,
            "model": options.large_model,
            "batch": 1,
            "size": options.large_size,
        },
    )
    with Process(contestant, threads=options.threads) as process:
        process.result()
        return process.memory().ever


def report_time(label: str, rounds: list[Round]) -> str:
    """Each method's ratio to a forward pass: median, interval of it, and spread over the rounds."""
    base = statistics.median(turns[FORWARD].seconds for turns in rounds)
    lines = [f"{label}: a forward pass takes {1e3 * base:.0f} ms"]
    for method, limit in LIMITS.items():
        ratios = paired_ratios(rounds, FORWARD, method)
        found = compare([ratios])
        low, high = (quantile(sorted(ratios), share) for share in (0.1, 0.9))
        lines.append(
            f"  {method:<10} {found.ratio:.2f} times that ({found.low:.2f} to {found.high:.2f}; "
            f"rounds {low:.2f} to {high:.2f}); limit {limit}: {verdict(found, limit)}"
        )
    return "\n".join(lines)


def verdict(found: Estimate, limit: float) -> str:
    """Whether a limit is kept, where the interval leaves no doubt."""
    if found.high <= limit:
        return "kept"
    return "missed" if found.low > limit else "not shown"


def report_memory(found: dict[str, int], options: argparse.Namespace) -> str:
    """The peak of each process against the limit."""
    lines = [f"{options.large_model} at {options.large_size}, one image"]
    for method, peak in found.items():
        kept = "kept" if peak < MEMORY_LIMIT else "missed"
        lines.append(f"  {method:<10} {peak / 1e9:.2f} GB; limit {MEMORY_LIMIT / 1e9:.0f}: {kept}")
    return "\n".join(lines)


def main() -> None:
    """Measure time, then memory."""
    options = parser().parse_args()
    settings = [(model, batch) for model in options.models for batch in options.batch]
    progress = Progress(len(settings))
    found: dict[str, Any] = {"time": {}, "memory": {}}
    texts = []
    for model, batch in settings:
        label = f"{model} b{batch}"
        progress.start(label)
        rounds = measure(model, batch, options, progress)
        texts.append(report_time(label, rounds))
        found["time"][label] = [{name: asdict(turn) for name, turn in r.items()} for r in rounds]
    if options.large_size:
        found["memory"] = {name: peak_memory(name, options) for name in (FORWARD, *LIMITS)}
        texts.append(report_memory(found["memory"], options))
    print("\n\n".join(texts))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--models", nargs="+", default=["vit_ti16", "vit_s16"])
    found.add_argument("--batch", nargs="+", type=int, default=[8])
    found.add_argument("--rounds", type=int, default=15)
    found.add_argument("--seconds", type=float, default=1.0, help="of a turn, about")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--large-model", default="vit_s16")
    found.add_argument("--large-size", type=int, default=1024, help="0: no memory is measured")
    found.add_argument("--json", type=Path)
    return found


if __name__ == "__main__":
    main()
