"""`vitlab.load`: a model that answers, in torch or in another engine.

Imports no torch by itself: an engine may do without.
"""

import os
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from vitlab.inference.deployed_model import DeployedModel
from vitlab.inference.open_model import open_answering
from vitlab.weights.labels import Labels

if TYPE_CHECKING:
    from vitlab.inference.classifier import Classifier


@overload
def load(
    path: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    engine: Literal["torch"] = "torch",
    **changes: Any,
) -> "Classifier": ...


@overload
def load(
    path: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    engine: str,
    **changes: Any,
) -> "Classifier | DeployedModel": ...


def load(
    path: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    engine: str = "torch",
    **changes: Any,
) -> "Classifier | DeployedModel":
    """A classifier from a run, a bundle, a weight file or its folder, or a name.

    Names are those of models inside the package and of fetched checkpoints.

    `labels` names the classes: `imagenet-1k`, a file with one name a line, or the names.
    `merge_tokens` patches become part of another in each block: faster, and a little less exact.
    `engine` is what computes, as in `vitlab predict`: every one predicts, torch alone has features
    and explanations. `auto` and the others take exported files, too.
    """
    if engine == "torch":
        from vitlab.inference.classifier import load as load_classifier

        return load_classifier(path, labels=labels, merge_tokens=merge_tokens, **changes)
    opened = open_answering(
        path, engine=engine, labels=labels, merge_tokens=merge_tokens, **changes
    )
    return opened if isinstance(opened, DeployedModel) else cast(Any, opened).classifier
