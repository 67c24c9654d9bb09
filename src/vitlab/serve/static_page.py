"""`vitlab explore --static`: the page as a folder of files, with results of its sample images.

Any web server can offer the folder. Attention is stored in 8 bits, relative to the highest value of
its row; everything else is float32.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.classifier import Classifier
from vitlab.errors import InputError
from vitlab.images.pixels import read_both, shown
from vitlab.io.files import staged_folder, write_files
from vitlab.serve.network import Network
from vitlab.serve.page_facts import METHODS, OF_A_CLASS, page_facts, read_page
from vitlab.serve.samples import Samples, thumbnail

FEW = 20
"""Classes up to which every class has maps; of more, the likeliest of each image."""
LIKELY = 3
"""Classes of each image that have maps, if there are many."""

Arrays = dict[str, NDArray[Any]]


def write_static(
    folder: Path,
    classifier: Classifier,
    samples: Samples,
    progress: Callable[[int, int | None], None] | None = None,
) -> int:
    """Write the page for a model and these images into a new folder; returns its bytes."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists; valid: a new folder, or an empty one")
    network = Network(classifier) if classifier.model is not None else None
    facts = page_facts(classifier, network, samples.names)
    if facts["rows_only"]:
        raise InputError(
            f"{max(facts['tokens'])} tokens: too many to store the attention between all of them; "
            f"valid: a smaller image_size, or `vitlab explore` without --static"
        )
    with staged_folder(folder) as staged:
        _write(staged, classifier, network, samples, facts, progress or (lambda done, images: None))
        written = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    return written


def _write(
    staged: Path,
    classifier: Classifier,
    network: Network | None,
    samples: Samples,
    facts: dict[str, Any],
    progress: Callable[[int, int | None], None],
) -> None:
    page = read_page()
    marked = page.pop("index.html").replace(b"<html ", b'<html data-source="files" ', 1)
    write_files(staged, {"index.html": marked})
    write_files(staged / "page", page)
    images = [_read(samples, number, classifier) for number in range(len(samples.names))]
    engine = classifier.predictor().engine
    predicted = [engine.predict(pixels[None])[0] for _, pixels in images]
    facts["targets"] = targets_of(predicted)
    for number, ((small, pixels), row) in enumerate(zip(images, predicted, strict=True)):
        progress(number, len(images))
        found: Arrays = {"predict": row.astype("<f4")}
        if network is not None:
            found |= dict(_results(network, pixels, facts))
        facts["shapes"] = {name: values.shape[-2:] for name, values in found.items()}
        binary = {f"{name}.bin": values.tobytes() for name, values in found.items()}
        binary |= {"image.png": small, "pixels.bin": pixels.tobytes()}
        write_files(staged / "data" / str(number), binary)
    progress(len(images), len(images))
    write_files(staged / "data", {"model.json": json.dumps(facts).encode()})


def _read(samples: Samples, number: int, classifier: Classifier) -> tuple[bytes, NDArray[np.uint8]]:
    """An image as a small PNG without metadata, and as input of the model."""
    try:
        whole, pixels = read_both(BytesIO(samples.read(number)), classifier.preprocessing)
    except InputError as error:
        raise InputError(f"{samples.names[number]}: {error}") from error
    return thumbnail(shown(whole)), pixels


def targets_of(predicted: "list[NDArray[np.float32]]") -> list[int]:
    """Classes that have maps: all, or of many the likeliest of each image."""
    classes = len(predicted[0])
    if classes <= FEW:
        return list(range(classes))
    return sorted({int(one) for row in predicted for one in np.argsort(-row)[:LIKELY]})


def _results(
    network: Network, pixels: NDArray[np.uint8], facts: Mapping[str, Any]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Everything that the page shows of one image, by the name of its file."""
    has = {method for method in METHODS if facts["methods"][method] is None}
    if "attention" in has:
        yield "layers", network.layers(pixels)
        for layer in range(len(facts["grids"])):
            yield f"attention-{layer}", packed(network.attention(pixels, layer))
    if "rollout" in has:
        yield "rollout", network.rollout(pixels)
    for method in has.intersection(OF_A_CLASS):
        yield method, network.maps(pixels, method, facts["targets"])


def packed(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bytes of [A, M, N]: the highest value of each row in float32, then all parts of it."""
    highest = rows.max(axis=-1, keepdims=True)
    parts = np.rint(255 * rows / np.maximum(highest, np.finfo(np.float32).tiny))
    content = highest.astype("<f4").tobytes() + parts.astype(np.uint8).tobytes()
    return np.frombuffer(content, np.uint8)
