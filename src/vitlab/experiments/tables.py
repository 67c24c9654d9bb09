"""Results as CSV: a line for each training, and a line for each difference."""

import csv
import io
from collections.abc import Iterable, Sequence

from vitlab.experiments.findings import Findings

TRAINING = (
    *("arm", "seed", "value", "held_out", "images", "parameters", "forward", "steps"),
    *("images_seen", "pflops", "minutes"),
)
DIFFERENCE = ("arm", "against", "mean", "low", "high", "seeds", "over", "chosen", "verdict")


def trainings_csv(found: Findings) -> str:
    """Every training: what it came to and cost."""
    return _csv(TRAINING, ([getattr(r, name) for name in TRAINING] for r in found.results))


def differences_csv(found: Findings) -> str:
    """Every difference with its interval."""
    rows = (
        [*(getattr(item, name) for name in DIFFERENCE), " ".join(item.beside)]
        for item in found.differences
    )
    return _csv((*DIFFERENCE, "beside"), rows)


def _csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()
