"""Where a run goes on: its newest checkpoint that can be read, if it is still the same run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitlab.errors import ConfigError, WeightsError
from vitlab.train.checkpoint import Checkpoint, Progress, checkpoints, read_checkpoint, restore
from vitlab.train.state import TrainState

FREE = frozenset(("workers", "max_broken", "judge_all", "judged_on", "checkpoint_every", "keep"))
"""Settings that a run may change on the way: its weights do not depend on them."""
PLAN = "plan"
"""Of a checkpoint's settings, what is no field of the run's own; older ones have none."""

log = logging.getLogger(__name__)


def resume(folder: Path, state: TrainState, settings: Mapping[str, Any]) -> Progress:
    """Bring `state` to where the checkpoints in `folder` lead; without any, leave it as it is."""
    stored = _newest(folder)
    if stored is None:
        return Progress(settings=settings)
    known = stored.progress.settings
    _check_settings(known, {k: v for k, v in settings.items() if k in known or k != PLAN})
    return restore(state, stored)


def _newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; damaged ones are renamed, not removed."""
    damaged: dict[Path, WeightsError] = {}
    for path in checkpoints(folder):
        try:
            stored = read_checkpoint(path)
        except WeightsError as error:
            damaged[path] = error
            continue
        for bad, reason in damaged.items():
            bad.rename(bad.with_name(f"{bad.name}.damaged"))
            log.warning("%s; the run goes on from %s", reason, path.name)
        return stored
    if damaged:
        raise WeightsError(
            f"{next(iter(damaged.values()))}; no other checkpoint can be read: remove "
            f"{folder} to begin again at step 1"
        )
    return None


def _check_settings(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> None:
    """A changed setting would end in other weights than the run was to have."""
    for key in sorted({*then, *now} - (set() if prefix else FREE)):
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            _check_settings(old, new, f"{prefix}{key}.")
        elif old != new:
            raise ConfigError(
                f"config.json was changed since the run began: {prefix}{key} was {old!r} and is "
                f"{new!r}; change it back, or begin another run"
            )
