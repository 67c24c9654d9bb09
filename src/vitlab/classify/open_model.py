"""What answers for pictures: the model in torch, or an exported file in a runtime of its own.

Imports no torch by itself: a bundle with an ONNX file is answered for without.
"""

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    cast,
    get_args,
    overload,
    runtime_checkable,
)

from vitlab.classify.engines.runtimes import ENGINES, onnx_engine
from vitlab.classify.exported_model import (
    DeployedModel,
    StaleExport,
    check_merging,
    open_beside,
    open_deployed,
)
from vitlab.classify.predictor import Predictor
from vitlab.errors import InputError, MissingExtra, UnknownName
from vitlab.machine.cores import may_have_accelerator
from vitlab.weights.bundle_files import ONNX, is_bundle
from vitlab.weights.labels import Labels
from vitlab.weights.published import Checkpoint, resolve
from vitlab.weights.source import WeightSource

if TYPE_CHECKING:
    from vitlab.classify.classifier import Classifier


EngineName = Literal["auto", "torch", "onnxruntime", "openvino", "aoti"]
FILES = {".onnx": ENGINES, ".pt2": ("aoti",)}
"""Engines that run an exported file, by its ending; the first is the usual one."""
EXTRAS = {"onnxruntime": "export", "openvino": "openvino"}
"""What installs an engine."""

log = logging.getLogger(__name__)


@runtime_checkable
class Answering(Protocol):
    """A model that can be asked what is on pictures."""

    @property
    def engine(self) -> str:
        """The name of what computes."""

    @property
    def merge_tokens(self) -> int:
        """Tokens that are merged in each block."""

    @property
    def source(self) -> WeightSource:
        """Where the model comes from, and how images are prepared for it."""

    def predictor(
        self, *, batch_size: int | None = None, threshold: float | None = None
    ) -> Predictor:
        """What streams pictures through it; None: batches that suit model and machine."""

    def fingerprint(self) -> str:
        """The same for models that give the same answers in the same words."""


def open_answering(
    model: str | os.PathLike[str],
    *,
    engine: str = "auto",
    labels: Labels | None = None,
    merge_tokens: int = 0,
    quickly: bool = False,
    **changes: Any,
) -> Answering:
    """A run, a bundle, a weight file, an exported file, or a name, for one of the engines.

    `auto` takes the faster runtime (`onnx_engine`) where an ONNX file of the model is there and no
    accelerator may be, else torch; `quickly`, the one that starts sooner. An exported file merges
    as many tokens as it was exported with; `merge_tokens` then asks for that number. `changes`
    are those of `load_weights`, and need torch.
    """
    if engine not in get_args(EngineName):
        raise UnknownName("engine", engine, get_args(EngineName))
    suffix = Path(model).suffix
    if suffix in FILES:
        return _open_file(Path(model), engine, labels, merge_tokens, changes, quickly=quickly)
    place = resolve(model)
    folder = None if changes else _exported(place)
    chosen = _best_engine(folder, quickly=quickly) if engine == "auto" else engine
    if folder is not None and chosen not in ("torch", "aoti"):
        try:
            return open_beside(folder, engine=chosen, labels=labels, merge_tokens=merge_tokens)
        except StaleExport as error:
            if engine != "auto":
                raise
            if not merge_tokens:  # a plain file beside the weights is what there usually is
                log.warning("%s; torch computes instead", error)
            chosen = "torch"
    if chosen == "torch":
        from vitlab.classify.classifier import load_fast

        name = os.fspath(model)
        return load_fast(name, place, labels=labels, merge_tokens=merge_tokens, **changes)
    if engine in EXTRAS and find_spec(engine) is None:
        raise MissingExtra(EXTRAS[engine], f"the engine {engine}")
    kind = "aoti" if engine == "aoti" else "onnx"
    option = f" --merge-tokens {merge_tokens}" if merge_tokens else ""
    raise InputError(
        f"the engine {engine} needs an exported file: "
        f"`vitlab export {os.fspath(model)}{option} --format {kind} --output FILE{_ending(engine)}`"
        f", then FILE{_ending(engine)} instead of {os.fspath(model)}"
    )


def _open_file(
    path: Path,
    engine: str,
    labels: Labels | None,
    merge_tokens: int,
    changes: dict[str, Any],
    *,
    quickly: bool,
) -> Answering:
    valid = FILES[path.suffix]
    if engine not in ("auto", *valid):
        raise InputError(f"{path} is not for the engine {engine}; valid: {', '.join(valid)}")
    if changes:
        raise InputError(f"{path} is fixed: {min(changes)} cannot be changed any more")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    chosen = engine
    if engine == "auto":
        chosen = valid[0]
        if path.suffix == ".onnx":
            chosen = onnx_engine(path, quickly=quickly) or chosen
    found = open_deployed(path, engine=chosen, labels=labels)
    if merge_tokens:
        check_merging(path, found.merge_tokens, merge_tokens)
    return found


def _best_engine(folder: Path | None, *, quickly: bool) -> str:
    """The engine for a bundle with an ONNX file, or for a model without one (None)."""
    engine = None if folder is None else onnx_engine(folder / ONNX, quickly=quickly)
    return "torch" if engine is None or may_have_accelerator() else engine


def _exported(place: Checkpoint | Path) -> Path | None:
    """The bundle, if it holds an ONNX file."""
    if not (isinstance(place, Path) and place.is_dir() and is_bundle(place)):
        return None
    return place if (place / ONNX).is_file() else None


def _ending(engine: str) -> str:
    return next(suffix for suffix, engines in FILES.items() if engine in engines)


# `vitlab.load`: a model that answers, in torch or in another engine.
#
# Imports no torch by itself: an engine may do without.


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
        from vitlab.classify.classifier import load as load_classifier

        return load_classifier(path, labels=labels, merge_tokens=merge_tokens, **changes)
    opened = open_answering(
        path, engine=engine, labels=labels, merge_tokens=merge_tokens, **changes
    )
    return cast(Any, opened)
