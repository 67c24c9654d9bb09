"""What is timed: each function is called in a process of its own and returns the call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from vitlab.classify.open_model import EngineName, open_answering
from vitlab.config import from_dict
from vitlab.errors import UnknownName
from vitlab.jobs.benchmark.peers import PEERS
from vitlab.jobs.benchmark.prepare import IMAGES

Call = Callable[[], Any]
ENGINES: tuple[str, ...] = get_args(EngineName)
DEFAULT_ENGINE = "auto"


def check_engine(name: str) -> None:
    """Refuse an engine that there is none of."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)


def engine(place: str, folder: str, engine: str, merge_tokens: int, batch: int) -> Call:
    """Ours: probabilities of normalised images, as `vitlab predict` computes them."""
    import numpy as np

    check_engine(engine)
    images = np.load(Path(folder) / IMAGES)[:batch]
    answering = open_answering(place, engine=engine, merge_tokens=merge_tokens)
    opened = answering.predictor(batch_size=batch).engine
    return lambda: opened.predict(images)


def peer(name: str, folder: str, config: dict[str, Any], batch: int) -> Call:
    """Theirs: logits of the same images."""
    import numpy as np
    import torch

    from vitlab.models.config import ViTConfig

    network = PEERS[name].open(from_dict(ViTConfig, config), Path(folder) / PEERS[name].file)
    images = torch.from_numpy(np.load(Path(folder) / IMAGES)[:batch])

    def call() -> Any:
        with torch.inference_mode():
            found = network(images)
        return getattr(found, "logits", found)

    return call
