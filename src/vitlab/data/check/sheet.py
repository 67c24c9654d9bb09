"""Contact sheet of a check: a few examples of each finding, with the problem."""

from collections.abc import Iterator
from pathlib import Path

from vitlab.data.check.check import Check
from vitlab.data.check.findings import Finding
from vitlab.data.sources.folder import image_files
from vitlab.images.contact_sheet import Tile, write_contact_sheet
from vitlab.images.statistics import tile_image

COLUMNS = 6
"""Examples of a finding: one row."""
CLASSES = 2 * COLUMNS
"""Number of classes of which an image is shown."""


def write_check_sheet(path: Path, check: Check) -> None:
    """Write the contact sheet of a check as a PNG."""
    found, serious = len(check.findings), sum(found.serious for found in check.findings)
    title = (
        f"{Path(check.folder).absolute().name}: {check.images:,} images in "
        f"{len(check.counts):,} classes; {found or 'no'} {'finding' if found == 1 else 'findings'}"
        f"{f', {serious} serious' if serious else ''}"
    )
    write_contact_sheet(path, _tiles(check), title=title, columns=COLUMNS)


def _tiles(check: Check) -> Iterator[Tile]:
    root = Path(check.folder)
    for found in check.findings:
        yield from list(_examples(root, found))[:COLUMNS]
    yield from _classes(root, check)


def _examples(root: Path, found: Finding) -> Iterator[Tile]:
    """Cases that are files; two each for copies."""
    for item in found.items[:COLUMNS]:
        for path in (item.paths[0], item.paths[-1]) if len(item.paths) > 1 else item.paths:
            if (root / path).is_file() and found.name != "other_files":
                yield Tile(
                    image=tile_image(root / path),
                    caption=f"{path}\n{item.detail}".strip(),
                    mark="bad" if found.serious else "warn",
                    group=found.line,
                )


def _classes(root: Path, check: Check) -> Iterator[Tile]:
    """First image of each of some classes."""
    for label, splits in list(check.counts.items())[:CLASSES]:
        split = next(iter(splits))
        first = min(image_files(root / split / label), default=None)
        if first is not None:
            count = sum(splits.values())
            yield Tile(
                image=tile_image(Path(first)),
                caption=f"{label}\n{count:,} {'image' if count == 1 else 'images'}",
                group="An image of each class"
                if len(check.counts) <= CLASSES
                else f"An image of each of {CLASSES} of the {len(check.counts):,} classes",
            )
