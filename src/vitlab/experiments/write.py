"""Everything that an experiment leaves: tables, figures and a page."""

from vitlab.experiments.figures import draw
from vitlab.experiments.findings import Findings
from vitlab.experiments.page import render
from vitlab.experiments.tables import differences_csv, trainings_csv
from vitlab.files import write_files, write_json
from vitlab.tasks.figures.style import rendered, styled
from vitlab.tasks.figures.write import KINDS


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
