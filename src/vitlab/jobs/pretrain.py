"""`vitlab pretrain`: from images without labels to an encoder that `finetune` starts from."""

import os
from collections.abc import Mapping
from typing import Any

from vitlab.jobs.run import Watcher
from vitlab.jobs.run_result import Run
from vitlab.jobs.train import DEFAULT, train
from vitlab.training.recipes.from_scratch import pretraining


def pretrain(
    objective: str | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Learn from images alone, by `masked-patch` or `mae` (None), and write the encoder to `out`.

    `data` is as in `train`, or a folder of images without classes; `changes` are dotted fields of
    `TrainConfig`, such as `mae.mask`.
    """
    model = (changes or {}).get("model")
    return train(
        objective or DEFAULT if resume else pretraining(objective, model=model),
        data=data,
        out=out,
        changes=changes,
        resume=resume,
        download=download,
        licence=licence,
        watcher=watcher,
    )
