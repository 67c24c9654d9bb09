"""The card as Markdown, with the YAML front matter that the Hugging Face hub reads."""

import json
from collections.abc import Iterator
from pathlib import Path

from vitlab.io.files import replacing
from vitlab.io.text import markdown_text, visible
from vitlab.report.card.content import (
    NOT_STATED,
    Card,
    Measured,
    Section,
    accuracy_in_words,
    kind_of_outputs,
    sections,
)

HUB_LICENCES = frozenset(
    (
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "mpl-2.0", "unlicense", "openrail"),
        *("agpl-3.0", "gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0"),
        *("cc0-1.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nd-4.0"),
        *("cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0"),
    )
)
"""Licence identifiers of the hub; any other licence is `other` with a name."""
FENCED = ("command",)
"""Rows shown as a block to copy instead of a line of the table."""
LOCAL = ("path",)
"""Rows without meaning on another machine."""

USAGE = """## How to use it

```python
import vitlab

model = vitlab.load("FOLDER")  # where this card and the weights are
print({call})
```"""


def markdown(card: Card) -> str:
    """The whole card as one Markdown text."""
    shown = [section for section in sections(card) if section.rows]
    parts = (
        front_matter(card),
        f"# {markdown_text(card.title)}",
        _opening(card),
        *map(_section, shown),
    )
    call = "predict" if card.model.classes else "features"
    return "\n\n".join((*parts, USAGE.format(call=f'model.{call}("image.jpg")'))) + "\n"


def write_markdown(card: Card, path: Path) -> None:
    """Write the card atomically."""
    with replacing(path) as file:
        file.write(markdown(card).encode())


def front_matter(card: Card) -> str:
    """Front matter for the hub's index."""
    kind = ["vision-transformer", "vit"] if card.cost.tokens else ["cnn"]
    use = _use(card)
    lines = [
        "---",
        *_licence(card.licence),
        "library_name: vitlab",
        *(f"pipeline_tag: {tag}" for tag in use),
        "tags:",
        *(f"- {tag}" for tag in (*use, *kind, "vitlab")),
    ]
    if card.measured:
        lines += ["metrics:", "- accuracy", *_results(card, card.measured[0])]
    return "\n".join((*lines, "---"))


def _use(card: Card) -> tuple[str, ...]:
    """Task of the model in the hub's terms; there is none for a model that predicts values."""
    if not card.model.classes:
        return ("image-feature-extraction",)
    return () if kind_of_outputs(card) == "values" else ("image-classification",)


def _licence(licence: str | None) -> Iterator[str]:
    if licence is None:
        yield "license: unknown"
    elif licence.lower() in HUB_LICENCES:
        yield f"license: {licence.lower()}"
    else:
        yield "license: other"
        yield f"license_name: {_quoted(licence)}"


def _results(card: Card, item: Measured) -> Iterator[str]:
    """Accuracy in the hub's format for model pages."""
    data = _quoted(Path(str(card.provenance.get("data") or "unknown")).name)
    yield "model-index:"
    yield f"- name: {_quoted(card.title)}"
    yield "  results:"
    yield "  - task:"
    yield "      type: image-classification"
    yield "    dataset:"
    yield f"      name: {data}"
    yield f"      type: {data}"
    yield f"      split: {_quoted(item.split)}"
    yield "    metrics:"
    yield "    - type: accuracy"
    yield f"      value: {item.accuracy!r}"


def _quoted(text: str) -> str:
    """Quoted string for YAML, of which JSON is a subset."""
    return json.dumps(visible(text), ensure_ascii=False)


def _opening(card: Card) -> str:
    best = next(iter(card.measured), None)
    accuracy = ""
    if best is not None:
        accuracy = f" Accuracy on {best.split} images: {accuracy_in_words(best)}."
    return f"A model of [vitlab](#how-to-use-it): {_sentence(card)}.{markdown_text(accuracy)}"


def _sentence(card: Card) -> str:
    size = f"{card.cost.parameters:,} parameters"
    count = card.model.classes
    return f"{size}, {count:,} {kind_of_outputs(card)}" if count else f"{size}, no head"


def _section(section: Section) -> str:
    fenced = [row for row in section.rows if row[0] in FENCED and row[1] != NOT_STATED]
    table = [row for row in section.rows if row[0] not in LOCAL and row not in fenced]
    lines = [f"## {section.title}", "", "| | |", "|---|---|"]
    lines += [f"| {markdown_text(name)} | {markdown_text(value)} |" for name, value in table]
    for _, block in fenced:
        lines += ["", "```", visible(block), "```"]
    return "\n".join(lines)
