"""Tar shards in the layout of WebDataset: the files of a sample share a name up to its first dot.

The label is in `.cls` (the number or name of a class), or in `.json` as `label`, `labels` or
`value`, as in the columns of a CSV; without both, the first folder in the name is the class.
"""

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from tarfile import BLOCKSIZE
from typing import Any, BinaryIO

from vitlab.config import parse_json
from vitlab.data.shards.index import content_digest
from vitlab.data.shards.samples import Block, Damaged, Sample, Target
from vitlab.errors import ConfigError, DataError, one_line
from vitlab.images.find import HIDDEN, SUFFIXES

CLASS, FIELDS = ".cls", ".json"
MOST_TEXT = 1 << 20
"""Bytes of a label file."""
LARGEST = (1 << 31) - 1
"""Bytes of an image."""


def scan_tar(path: str | os.PathLike[str]) -> Block:
    """All samples of a shard; `Damaged` after the samples that precede the damage."""
    samples: list[Sample] = []
    size = os.stat(path).st_size
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for group in _groups(_members(tar)):
                sample = _sample(group, file)
                if sample is not None:
                    samples.append(sample)
            # Python's reader takes a cut at the start of a header for the end of the archive.
            if file.seek(tar.offset) == tar.offset and file.read(BLOCKSIZE) != bytes(BLOCKSIZE):
                raise EOFError("no mark of its end")
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = f"a damaged tar file behind {len(samples):,} samples ({one_line(error)})"
        raise Damaged(reason, Block(samples, (0, 0), size)) from error
    return Block(samples, (0, 0), size)


def _members(tar: Any) -> Iterator[tarfile.TarInfo]:
    """Files of an archive, without keeping all of them in memory."""
    while (member := tar.next()) is not None:
        tar.members = []
        parts = PurePosixPath(member.name).parts
        if member.isreg() and not any(part.startswith(HIDDEN) for part in parts):
            yield member


def _groups(members: Iterable[tarfile.TarInfo]) -> Iterator[list[tarfile.TarInfo]]:
    """Neighbouring files of one sample."""
    group: list[tarfile.TarInfo] = []
    for member in members:
        if group and split_name(member.name)[0] != split_name(group[0].name)[0]:
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def split_name(name: str) -> tuple[str, str]:
    """Name of a sample, and the ending of one of its files: from the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    stem, dot, ending = last.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower()


def _sample(group: list[tarfile.TarInfo], file: BinaryIO) -> Sample | None:
    """Sample of some files; None if none of them is an image."""
    found = {split_name(member.name)[1]: member for member in group}
    if len(found) < len(group):
        raise DataError(f"{group[0].name}: two files of one name in a sample; valid: one each")
    images = [member for ending, member in found.items() if ending in SUFFIXES]
    if not images:
        return None
    if len(images) > 1:
        raise DataError(
            f"{images[0].name} and {images[1].name} are images of one sample; valid: one each"
        )
    image = images[0]
    if image.size > LARGEST:
        raise DataError(f"{image.name} has {image.size:,} bytes; valid: at most {LARGEST:,}")
    target = _target(found, file)
    if target is None:
        parts = PurePosixPath(image.name).parts
        target = parts[0] if len(parts) > 1 else None
    return Sample(
        name=decoded_name(image.name).encode(errors="surrogateescape"),
        offset=image.offset_data,
        size=image.size,
        digest=content_digest(_content(image, file)),
        target=target,
    )


def _target(found: dict[str, tarfile.TarInfo], file: BinaryIO) -> Target:
    if CLASS in found:
        text = _text(found[CLASS], file)
        return int(text) if text.isdecimal() else text
    return target_of(found[FIELDS].name, _fields(found[FIELDS], file)) if FIELDS in found else None


def _fields(member: tarfile.TarInfo, file: BinaryIO) -> dict[str, Any]:
    try:
        fields = parse_json(_text(member, file))
    except ConfigError as error:
        raise DataError(f"{member.name}: {error}") from error
    return fields if isinstance(fields, dict) else {}


def target_of(where: str, fields: dict[str, Any]) -> Target:
    """Label in the fields of a sample; None if they have none of the known names."""
    match fields:
        case {"label": str() | int() as label} if not isinstance(label, bool):
            return label
        case {"labels": [*labels]} if all(isinstance(label, str) for label in labels):
            return tuple(labels)
        case {"value": int() | float() as value} if not isinstance(value, bool):
            return (float(value),)
        case {"value": [*values]} if all(isinstance(value, int | float) for value in values):
            return tuple(map(float, values))
    named = [name for name in ("label", "labels", "value") if name in fields]
    if named:
        raise DataError(
            f"{where}: {named[0]} is {str(fields[named[0]])[:60]!r}; valid: a label (text or "
            "number), labels (a list of texts), a value (a number, or a list of them)"
        )
    return None


def _text(member: tarfile.TarInfo, file: BinaryIO) -> str:
    if member.size > MOST_TEXT:
        raise DataError(f"{member.name} has {member.size:,} bytes; valid: at most {MOST_TEXT:,}")
    try:
        return _content(member, file).decode().strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{member.name}: not UTF-8 text") from error


def _content(member: tarfile.TarInfo, file: BinaryIO) -> bytes:
    file.seek(member.offset_data)
    content = file.read(member.size)
    if len(content) < member.size:
        raise EOFError(f"it ends within {member.name}")
    return content


def encoded_name(name: str, *, alone: bool) -> str:
    """Name of a file in a shard: dots before the ending would split the sample.

    Where a file of another ending has the same name, `alone` is False.
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, ending = last.rpartition(".")
    stem = stem.replace("%", "%25").replace(".", "%2E") + ("" if alone else f"%{ending}")
    return f"{folder}{slash}{stem}{dot}{ending}"


def decoded_name(name: str) -> str:
    """Name of the file that was stored under an `encoded_name`."""
    stem, dot, ending = name.rpartition(".")
    stem = stem.removesuffix(f"%{ending}") if dot else stem
    return f"{stem}{dot}{ending}".replace("%2E", ".").replace("%25", "%")
