"""`vitlab features --parts` and `--merge`: features of very many images, part by part.

A part is a feature file of its images, beside a list of those that cannot be read.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.data.images import FileSet, IndexedSet
from vitlab.data.listing import Listed, ShardClasses, list_images
from vitlab.data.shards.layout import index_at
from vitlab.errors import ConfigError, DataError, FileError, InputError
from vitlab.evaluation.feature_file import (
    FeatureInfo,
    check_suffix,
    reading_features,
    writing_features,
)
from vitlab.io.files import write_json
from vitlab.jobs.features import Embedder, Extracted, Watch, open_embedder
from vitlab.jobs.parts.on_ray import computing
from vitlab.jobs.parts.parts import (
    Done,
    Each,
    FileList,
    ImageList,
    IndexedList,
    Parts,
    Share,
    check_overwrite,
    checked,
    work_on,
)
from vitlab.jobs.predict import Predicted

ENDING, BROKEN = ".npz", ".json"
ROWS = 4096
"""Images whose features are in memory while parts are joined."""


@dataclass(frozen=True, kw_only=True)
class FeatureParts:
    """An open model and the images of a job in parts."""

    parts: Parts
    images: ImageList
    embedder: Embedder
    info: FeatureInfo

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        images: Sequence[str | os.PathLike[str]],
        *,
        output: Path,
        overwrite: bool = False,
        **options: Any,
    ) -> "FeatureParts":
        """Begin the job, or join others that work on it; `options` as in `open_embedder`."""
        check_suffix(output)
        torch.set_num_threads(1)  # the last bits of a sum depend on the number
        parts, embedder = parts_of(output), open_embedder(model, **options)
        names = [os.fspath(name) for name in images]
        settled = {
            "batch_size": embedder.batch_size,
            "images": list(map(os.path.abspath, names)),
            "info": to_dict(embedder.info()),
        }

        def settle(before: dict[str, Any] | None) -> dict[str, Any]:
            if before is not None:
                _check_same(output, before, settled)
            return settled

        found = parts.begin(lambda: _listed(names), settle, overwrite=overwrite)
        info = from_dict(FeatureInfo, parts.settings["settings"]["info"])
        return cls(parts=parts, images=found, embedder=embedder, info=info)

    def compute(self, number: int) -> Iterator[Done]:
        """Write a part; yields after each batch."""
        listed, broken = self._part(number), dict[Path, str]()
        path, reported = self.parts.path(number), 0
        with writing_features(path, self.info) as writer:
            for features, index in self.embedder.stream(listed.images, broken):
                rows = index.tolist()
                writer.add(
                    features.numpy(),
                    [listed.names[row] for row in rows],
                    [listed.labels[row] for row in rows],
                )
                new = list(broken.items())[reported:]
                reported += len(new)
                failed = [(str(name), reason) for name, reason in new]
                yield checked(Done(len(rows) + len(new), failed))
            late = [(str(name), reason) for name, reason in list(broken.items())[reported:]]
            last = checked(Done(len(late), late))
            write_json(
                path.with_suffix(BROKEN), {str(name): reason for name, reason in broken.items()}
            )
        yield last

    def _part(self, number: int) -> Listed:
        """Images of a part."""
        start, end = self.parts.bounds(number)
        labels = torch.zeros(end - start, dtype=torch.int64)
        if isinstance(self.images, IndexedList):
            index = self.images.index
            images = IndexedSet(index=index, numbers=torch.arange(start, end), labels=labels)
            names = [str(images.name(place)) for place in range(end - start)]
            return Listed(images=images, names=names, labels=ShardClasses(index, start, end))
        assert isinstance(self.images, FileList)
        names = list(self.images.names[start:end])
        files = FileSet(paths=tuple(map(Path, names)), labels=labels)
        return Listed(images=files, names=names, labels=self.images.labels[start:end])


def parts_of(output: Path) -> Parts:
    """Parts of a file of features."""
    return Parts(output=output, ending=ENDING)


def _listed(names: Sequence[str]) -> ImageList:
    """Images of one address of shards or tables, or files with their labels."""
    index = index_at(names[0]) if len(names) == 1 else None
    if index is not None:
        return IndexedList(index)
    listed = list_images(names)
    if not all(isinstance(each.images, FileSet) for each in listed):
        raise InputError(
            f"{' '.join(names[:3])} in parts; valid: files and folders, or one address of shards"
        )
    return FileList(
        [name for each in listed for name in each.names],
        [label for each in listed for label in each.labels],
    )


def _check_same(output: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise for features of another kind than those of earlier processes."""
    then = from_dict(FeatureInfo, before["info"])
    info = from_dict(FeatureInfo, now["info"])
    changes: dict[str, tuple[object, object]] = {
        f"another {name}": (getattr(then, name), getattr(info, name))
        for name in ("kind", "layer", "shape", "preprocessing")
    }
    changes["another batch size"] = before["batch_size"], now["batch_size"]
    names, mine = (" ".join(each["images"][:3]) for each in (before, now))
    changes["other images"] = names, mine
    if then.weights != info.weights:
        changes["another model"] = then.model, info.model
    for what, (old, new) in changes.items():
        if old != new or what == "another model":
            raise FileError(
                f"{output} was begun with {what} ({old}, now {new}); --overwrite starts anew"
            )


def extract_parts(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    output: Path,
    part: str | None = None,
    ray: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
    each: Each = lambda path, reason: None,
    watch: Callable[[int, int | None], None] | None = None,
    **options: Any,
) -> Predicted:
    """Compute the parts of this process that are not there, as `predict_parts` does."""
    if split is not None:
        raise ConfigError("parts take no --split; valid: a folder or a pattern of the split")
    share = Share.parse(part)
    check_overwrite(share, overwrite=overwrite)
    open_job = partial(FeatureParts.open, model, images, output=output, **options)
    job = open_job(overwrite=overwrite)
    return work_on(job.parts, share, computing(job, open_job, ray), each=each, watch=watch)


def merge_features(output: Path, watch: Watch | None = None) -> Extracted:
    """Join the parts in order; the parts stay."""
    check_suffix(output)
    parts = parts_of(output)
    info = from_dict(FeatureInfo, parts.settings["settings"]["info"])
    parts.check_complete()
    done = labelled = 0
    broken: dict[str, str] = {}
    with writing_features(output, info) as writer:
        for number in range(parts.count):
            path = parts.path(number)
            with reading_features(path) as reader:
                names = reader.names(range(reader.count))
                start = 0
                for rows in reader.chunks(ROWS):
                    paths, labels = zip(*names[start : start + len(rows)], strict=True)
                    writer.add(rows, paths, labels)
                    start += len(rows)
            done, labelled = done + len(names), labelled + sum(bool(label) for _, label in names)
            broken |= parse_json(path.with_suffix(BROKEN).read_bytes())
            if watch is not None:
                watch("parts", number + 1, parts.count)
        if not done:
            name, reason = next(iter(broken.items()))
            raise DataError(f"none of {parts.images} images can be read; one is {name}: {reason}")
    return Extracted(output=output, info=info, images=done, labelled=labelled, broken=broken)
