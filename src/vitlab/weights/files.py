"""From a path to tensors under plain names: folders, shards, and the prefixes of wrappers."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.bundle_files import WEIGHTS, check_bundle_file, is_bundle, read_bundle_config
from vitlab.weights.container import TensorFile, open_tensors
from vitlab.weights.reading import SUFFIXES, read_json, reading

PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TREES = ("opt/target/", "params/")
"""Where a JAX training state keeps its parameters; what lies beside them is no weight."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "backbone.")


def open_weights(path: Path) -> TensorFile:
    """The tensors of a file, a folder or a set of shards, without wrapping prefixes.

    The weights of a bundle are compared with their digest.
    """
    file = _find(path)
    if file.name == WEIGHTS and is_bundle(file.parent):
        check_bundle_file(file.parent, WEIGHTS, read_bundle_config(file.parent))
    opened = _open_shards(file) if file.name.endswith(".index.json") else open_tensors(file)
    try:
        return _unwrapped(opened)
    except BaseException:
        opened.close()
        raise


def _find(path: Path) -> Path:
    if not path.is_dir():
        with reading(path):
            path.stat()
        return path
    for name in PREFERRED:
        if (path / name).is_file():
            return path / name
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(files) != 1:
        found = ", ".join(file.name for file in files[:4]) or "none"
        raise WeightsError(
            f"{path}: a folder needs {PREFERRED[0]} or one weight file; found: {found}"
        )
    return files[0]


def _open_shards(index: Path) -> TensorFile:
    """All files that an index names, as one."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise WeightsError(f"{index}: no weight_map of tensor names to files")
    with ExitStack() as stack:
        shards: dict[str, TensorFile] = {}
        for name in sorted({str(file) for file in where.values()}):
            if Path(name).name != name:
                raise WeightsError(f"{index}: shard {name!r} is not a file beside the index")
            shards[name] = open_tensors(index.parent / name)
            stack.callback(shards[name].close)
        for tensor, name in where.items():
            if tensor not in shards[name].shapes:
                raise WeightsError(f"{index}: tensor {tensor!r} is missing in {name}")
        release = stack.pop_all().close

    def load(tensor: str) -> Tensor:
        return shards[where[tensor]].read(tensor)

    shapes = {tensor: shards[name].shapes[tensor] for tensor, name in where.items()}
    return TensorFile(path=index, shapes=shapes, load=load, release=release)


def _unwrapped(file: TensorFile) -> TensorFile:
    names = {name: name for name in file.shapes}
    for tree in TREES:
        inside = {n.removeprefix(tree): raw for n, raw in names.items() if n.startswith(tree)}
        names = inside or names
    changed = True
    while changed:
        changed = False
        for prefix in WRAPPERS:
            if names and all(name.startswith(prefix) for name in names):
                names = {name.removeprefix(prefix): raw for name, raw in names.items()}
                changed = True
    if not names:
        raise WeightsError(f"{file.path}: holds no tensors")
    plain = names

    def load(name: str) -> Tensor:
        return file.load(plain[name])

    return replace(file, shapes={name: file.shapes[raw] for name, raw in names.items()}, load=load)
