"""Number of updates in a budget of epochs, steps, or minutes on this machine."""

import copy
import statistics
import time

from vitlab.training.config import TrainConfig
from vitlab.training.loop import Loader
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.progressive_resize import shrink, stages
from vitlab.training.state import TrainState, new_state
from vitlab.training.step import train_step

TRIAL_SECONDS, LONGEST_TRIAL = 10.0, 40.0
WARM_UP, FEWEST = 2, 5
"""Updates before the measured ones, while workers start and memory is found, and of the latter."""
MOST = 200
"""Measured updates."""
MARGIN = 0.97
"""Of the minutes; the rest goes to checkpoints."""
EVALUATION = 0.35
"""Time to evaluate an image, of the time to train with it: a third of the work, and no gradient.
That of a step in which the head learns alone is about the same."""


def steps_for(
    config: TrainConfig,
    state: TrainState,
    loader: Loader,
    *,
    evaluated: int,
    tested: int = 0,
    other: float = 0.0,
    first: bool = False,
    loss_of: Loss = cross_entropy,
) -> int:
    """The number of updates; decided once, before the first of them.

    `evaluated` is the number of images in each of the run's evaluations, `tested` that of the final
    test; `other` are the seconds of a run before this measurement and after the test. With `first`
    the weights before step 1 are evaluated too.
    """
    if config.budget_in == "steps":
        return max(round(config.budget), 1)
    if config.budget_in == "epochs":
        return max(round(config.budget * loader.steps_per_epoch), 1)
    times = seconds_by_stage(config, state, loader, loss_of)
    update = times[-1]  # with whole images
    # One more evaluation at the end fits the temperature and one more gives the result without
    # test images; two more compare trained and averaged weights.
    looks = config.evaluations + first + (1 if tested else 2) + (2 if config.ema else 0)
    evaluations = (looks * evaluated + tested) * EVALUATION * update / config.batch_size
    mean = sum(part * share for part, (_, share) in zip(times, stages(config), strict=True))
    step = mean * (1 - config.head_first * (1 - EVALUATION))  # on average
    left = config.budget * 60 * MARGIN - TRIAL_SECONDS - evaluations - other
    return max(int(left / step), 1)


def seconds_by_stage(
    config: TrainConfig, state: TrainState, loader: Loader, loss_of: Loss
) -> list[float]:
    """Median time of an update at each size of the images, measured on a copy thrown away."""
    trial = new_state(copy.deepcopy(state.model), config, state.world)
    trial.model.train()
    found = []
    sizes = [size for size, _ in stages(config)]
    for size in sizes:
        times: list[float] = []
        for step in range(WARM_UP + MOST):
            before = time.monotonic()
            batch = loader.batch(step)
            batch = batch._replace(images=shrink(batch.images, size))
            train_step(trial, batch, config, lr_factor=0.0, loss_of=loss_of)
            if step >= WARM_UP:
                times.append(time.monotonic() - before)
            longest = TRIAL_SECONDS if len(times) >= FEWEST else LONGEST_TRIAL
            if state.world.share(sum(times) > longest / len(sizes)):
                break
        found.append(statistics.median(times))
    return found
