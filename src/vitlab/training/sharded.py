"""Checkpoints of a state whose tensors are in shards: a folder of safetensors files.

Written and read through torch's distributed checkpoints, in the one storage of theirs that pickles
nothing. `progress.json` beside the files holds what the header of a checkpoint in one file holds,
and a checksum of each file. Any number of processes, or one, reads the whole tensors back.
"""

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.io.files import staged_folder, sync, write_json
from vitlab.machine.world import World

HEADER = "progress.json"


def write_shards(
    folder: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], world: World
) -> None:
    """Write the shards of every process; `folder` holds all of them or what it held before."""
    if world.rank:
        _save(Path(world.share("")), tensors)
        world.wait()  # until the first has renamed the folder
        return
    with staged_folder(folder) as place:
        _save(Path(world.share(str(place))), tensors)
        files = {path.name: _checksum(path) for path in sorted(place.glob("*.safetensors"))}
        write_json(place / HEADER, {**header, "files": files})
        for path in (*place.iterdir(), place):
            sync(path)
        old = folder.with_name(f".{folder.name}.old.tmp")
        if folder.exists():
            os.replace(folder, old)
        os.replace(place, folder)
        shutil.rmtree(old, ignore_errors=True)
    world.wait()


def _save(place: Path, tensors: Mapping[str, Tensor]) -> None:
    writer = HuggingFaceStorageWriter(path=str(place), save_distributed=True)
    save(dict(tensors), storage_writer=writer)


def read_header(folder: Path) -> dict[str, Any]:
    """Content of `progress.json`; WeightsError if a file of the folder is damaged."""
    try:
        header = parse_json((folder / HEADER).read_bytes())
        files = dict(header.pop("files"))
        wrong = [name for name, checksum in files.items() if _checksum(folder / name) != checksum]
    except (OSError, ConfigError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{folder}: not a whole checkpoint ({error})") from error
    if wrong:
        raise WeightsError(f"{folder / wrong[0]}: damaged (its checksum does not match)")
    return dict(header)


def read_whole(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, put together in this process alone."""
    reader = HuggingFaceStorageReader(path=str(folder))
    found: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in found.items()}
    load(tensors, storage_reader=HuggingFaceStorageReader(path=str(folder)), no_dist=True)
    return tensors


def _checksum(path: Path) -> str:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"
