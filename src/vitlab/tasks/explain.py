"""`vitlab explain`: what a model looks at in pictures, as numbers and as a figure."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import InputError
from vitlab.explain.ask import Ask
from vitlab.explain.explanation import Explanation
from vitlab.explain.figure import check_name, draw, save
from vitlab.explain.limits import LONGEST, MOST, SHOWN
from vitlab.inference.classifier import load
from vitlab.inference.explainer import Explainer, Target
from vitlab.inference.pictures import reading
from vitlab.tasks.embed import Watch
from vitlab.tasks.explain_pictures import choose, reads
from vitlab.tasks.job_machine import best_device
from vitlab.weights.labels import Labels


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """What was found."""

    explanations: Sequence[Explanation]
    broken: dict[str, str]
    """Pictures that could not be read, with the reason."""
    total: int
    """How many pictures were named; some of them were drawn where there were too many."""
    output: Path | None

    def to_json(self) -> dict[str, Any]:
        """All numbers, as JSON-able values."""
        return {
            "output": None if self.output is None else str(self.output),
            "images": [one.to_json() for one in self.explanations],
            "named": self.total,
            "broken": self.broken,
        }


def explain(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    ask: Ask,
    target: Target | None = None,
    output: Path | None = None,
    count: int = SHOWN,
    seed: int = 0,
    labels: Labels | None = None,
    download: bool = False,
    watch: Watch | None = None,
    **changes: Any,
) -> Explained:
    """Explain pictures, `count` of them where there are more; with `output`, draw them."""
    if output is not None:
        check_name(output)
        if count > MOST:
            raise InputError(f"a figure of {count} images; valid: up to {MOST}")
    classifier = load(model, labels=labels, **changes)
    classifier.model.to(best_device())
    explainer = Explainer(classifier, ask, target)
    with reading():
        chosen = choose(images, count=count, seed=seed, download=download)
        if output is not None and ask.each == "head" and len(chosen.pictures) > 1:
            raise InputError(
                f"a figure of every head of {len(chosen.pictures)} images; valid: one image"
            )
        found: list[Explanation] = []
        broken: dict[str, str] = {}
        kept = 1 if output is None else LONGEST
        for explanation in explainer.stream(reads(explainer, chosen, broken, longest=kept)):
            found.append(explanation)
            if watch is not None:
                watch("images", len(found) + len(broken), len(chosen.pictures))
    if output is not None:
        save(draw(found), output)
    return Explained(explanations=found, broken=broken, total=chosen.total, output=output)
