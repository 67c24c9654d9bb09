"""Files of the page, and the facts about a model that its controls are built from.

Imports no torch.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from vitlab.classify.classifier import Classifier

if TYPE_CHECKING:
    from vitlab.explain.request import Method

FILES = {
    "page.css": "text/css",
    "main.js": "text/javascript",
    "panel.js": "text/javascript",
    "source.js": "text/javascript",
    "draw.js": "text/javascript",
    "link.js": "text/javascript",
    "camera.js": "text/javascript",
    "check.js": "text/javascript",
    "lists.js": "text/javascript",
    "page.js": "text/javascript",
    "shown.js": "text/javascript",
    "tour.js": "text/javascript",
    "words.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of the page and their types; a request names one of these, never a path."""
MATRIX_BYTES = 16_000_000
"""Largest attention of a layer that is sent at once; beyond, the page asks for single rows."""
METHODS: "tuple[Method, ...]" = ("attention", "rollout", "relevance", "gradcam")
OF_A_CLASS = METHODS[2:]
CELLS = (8, 8)
"""Cells that are painted away in models without patches."""


def read_page() -> dict[str, bytes]:
    """Content of the page's files."""
    folder = files("vitlab.serve") / "page"
    return {name: (folder / name).read_bytes() for name in ("index.html", *FILES)}


def page_facts(
    classifier: Classifier, network: Any, samples: Sequence[str], *, without: str = "exported"
) -> dict[str, Any]:
    """Facts about the model for the controls; `without` names the reason why there is no network.

    It is `exported` for an exported file, `failed` for weights that torch cannot open.
    """
    preprocessing = classifier.preprocessing
    facts: dict[str, Any] = {
        "name": classifier.source.path.name,
        "task": classifier.source.task,
        "engine": classifier.engine,
        "labels": list(classifier.labels),
        "input": [preprocessing.channels, *preprocessing.size],
        "fill": [round(255 * value) for value in preprocessing.mean],
        "samples": list(samples),
        "kind": without,
        "grid": list(CELLS),
        "grids": [],
        "methods": dict.fromkeys(METHODS, without),
    }
    if network is not None:
        facts |= network.facts()
    prefix = facts.get("registers", 0) + facts.get("class_token", False)
    facts["tokens"] = [prefix + rows * columns for rows, columns in facts["grids"]]
    largest = max(facts["tokens"], default=0)
    facts["rows_only"] = 4 * facts.get("heads", 0) * largest**2 > MATRIX_BYTES
    return facts
