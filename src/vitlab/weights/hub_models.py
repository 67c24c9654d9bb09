"""Repositories on the Hugging Face hub whose weights load: addresses for `vitlab pull`.

Licence, classes and image size are those that the publisher states; preprocessing and everything
else comes from the config in the repository.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

HOST = "https://huggingface.co"


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """One repository; None where nothing is stated."""

    repository: str
    """`OWNER/NAME`."""
    licence: str
    gated: str | None
    """`yes` if its publisher grants access on request, `no` if anybody can download."""
    dataset: str | None
    """Dataset of the head's classes."""
    image_size: int

    @property
    def name(self) -> str:
        """Address, as every command takes it."""
        return f"hf:{self.repository}"

    @property
    def url(self) -> str:
        """Page of the repository."""
        return f"{HOST}/{self.repository}"


@cache
def hub_models() -> dict[str, HubModel]:
    """Every repository of the table by its address."""
    text = (files("vitlab.weights") / "hub_models.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        model = HubModel(
            repository=row["repository"],
            licence=row["licence"],
            gated=row["gated"] or None,
            dataset=row["dataset"] or None,
            image_size=int(row["image_size"]),
        )
        found[model.name] = model
    return found
