"""Everything that an experiment leaves: tables, figures and a page."""

import csv
import io
from collections.abc import Iterable, Sequence

from vitlab.experiments.figures import draw
from vitlab.experiments.findings import Findings
from vitlab.experiments.page import render
from vitlab.io.files import write_files, write_json
from vitlab.report.figures.table import KINDS
from vitlab.report.plots import rendered, styled

# Results as CSV: a line for each training, and a line for each difference.

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


def write(found: Findings) -> None:
    """`results.csv`, `differences.csv`, `results.json`, figures as PNG and SVG, `report.html`."""
    figures: dict[str, bytes] = {}
    with styled():
        for name, figure in draw(found).items():
            figures |= {f"{name}.{kind}": rendered(figure, kind) for kind in KINDS}
    page = render(found, {name: data for name, data in figures.items() if name.endswith(".svg")})
    write_files(found.folder, {**figures, "report.html": page.encode(errors="replace")})
    write_tables(found)


def write_tables(found: Findings) -> None:
    """The numbers alone, which takes no time."""
    contents = {
        "results.csv": trainings_csv(found).encode(),
        "differences.csv": differences_csv(found).encode(),
    }
    write_files(found.folder, contents)
    write_json(found.folder / "results.json", found.to_dict())
