"""Origin of a model's weights, and facts about their use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import PreprocessingUnknown, VitlabError, WeightsError
from vitlab.images.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """Metadata read with the weights, and assumptions."""

    format: str
    path: Path
    preprocessing: Preprocessing | None = None
    channels: int | None = None
    """Channels of the images that the weights were made for; the model may have been adapted."""
    labels: tuple[str, ...] | None = None
    task: str = "single-label"
    """`single-label`, `multi-label` or `regression`, whose outputs are values in their unit."""
    name: str | None = None
    """Name of the weights in the table of published checkpoints."""
    licence: str | None = None
    known_classes: tuple[str, ...] = ()
    """Classes of a new head that keep their learned rows."""
    zero_head: bool = False
    """Every number of the head is zero: it has not been trained."""
    assumed: tuple[str, ...] = ()
    """Each default that neither tensors, nor a config file, nor a keyword decided."""
    ignored: tuple[str, ...] = ()
    """Tensors left out on purpose, such as the mask token of pre-training."""
    dialect: frozenset[str] = frozenset()
    """Naming of the format in the file; saving in the same format keeps it."""

    @property
    def warning(self) -> str | None:
        """Assumptions and the keywords that state them, as one line; None if there are none."""
        if not self.assumed:
            return None
        return (
            f"{self.path}: assumed {', '.join(self.assumed)}; to change it, pass a keyword, use "
            f"`vitlab convert --set KEY=VALUE`, or put the publisher's config.json beside the file"
        )

    def require_head(self) -> None:
        """Raise for a head that has not been trained."""
        if self.zero_head:
            raise WeightsError(
                f"{self.path.name}: every weight of the head is zero (on purpose in the 2020 "
                f"ImageNet-21k files, and in every new head): all classes would be equally likely; "
                f"fine-tune it first, with classes=N for classes of your own"
            )

    def require_preprocessing(self) -> Preprocessing:
        """Preprocessing of the images; raises if it is unknown."""
        if self.preprocessing is None:
            raise PreprocessingUnknown(
                f"{self.path.name}: nothing says how images must be prepared for these weights; "
                f"put the config.json or preprocessor_config.json of their publisher beside the "
                f"file, or pass preprocessing=Preprocessing(size=..., mean=..., std=...) in Python"
            )
        return self.preprocessing


def stored_preprocessing(content: Mapping[str, Any], name: str) -> Preprocessing | None:
    """Preprocessing from the content of a bundle's `config.json`; `name` is for errors."""
    stored, channels = content.get("preprocessing"), content["model"].get("channels", 3)
    if not stored:
        return None
    try:
        found = Preprocessing.from_json(stored)
    except VitlabError as error:
        raise WeightsError(f"{name}: preprocessing: {error}") from error
    if found.channels != channels:
        raise WeightsError(
            f"{name}: preprocessing of {found.channels} channels for a model of {channels}"
        )
    return found
