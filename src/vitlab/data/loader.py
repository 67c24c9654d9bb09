"""Training and evaluation batches of any set of images: augmented, normalised, mixed."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import Draws
from vitlab.data.augment.geometry import (
    augment_normalised,
    augment_pixels,
    random_crops,
    resize,
    resized_crop,
    which_to_mirror,
)
from vitlab.data.augment.mix import mix
from vitlab.data.images import (
    WINDOW,
    ArraySet,
    Fault,
    ImageSet,
    Labels,
    StoredSet,
    index_of,
    normalise,
)
from vitlab.data.order import Order
from vitlab.data.plan import Part, Plan, Rows, plan_batch
from vitlab.data.pool import DecoderPool, Pending, ReadingTime, Reasons, Task
from vitlab.data.shards.ahead import CopiesAhead
from vitlab.errors import DataError
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import Interpolation, Preprocessing
from vitlab.machine.device import decoding_processes, pinning
from vitlab.machine.world import ALONE, World, own_items

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Images and targets of one step, on the training device."""

    images: Float[Tensor, "B C H W"]
    targets: Float[Tensor, "B classes"] | Int[Tensor, " B"]
    """Class indices; for mixed images or several labels, a share per class; or values."""
    index: Int[Tensor, " B"]  # type: ignore[assignment]  # instead of the tuple's method
    """Indices of the images in the set; on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMaker:
    """All randomness after decoding; the same seed and step give the same batch anywhere."""

    config: AugmentConfig
    seed: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int

    def make(
        self,
        images: UInt8[Tensor, "R C H W"],
        labels: Labels,
        *,
        index: Int[Tensor, " R"],
        epoch: Int[Tensor, " R"],
        draws: Draws,
    ) -> Batch:
        """Batch of pixels, on their device; `draws` are those of these images."""
        mirrored = which_to_mirror(self.config, draws, index, epoch, seed=self.seed)
        images = augment_pixels(images, self.config, draws, mirrored=mirrored)
        pixels = normalise(images, self.mean, self.std)
        pixels = augment_normalised(pixels, self.config, draws)
        labels = labels.to(images.device)
        if labels.ndim == 2:
            labels = labels.to(pixels)
        if not self.config.mixes:
            return Batch(pixels, labels, index)
        targets = F.one_hot(labels, self.classes).to(pixels) if labels.ndim == 1 else labels
        return Batch(*mix(pixels, targets, draws), index)


def only(batch: Batch, rows: Rows) -> Batch:
    """These rows of a batch."""
    places = rows.to(batch.images.device)
    return Batch(batch.images[places], batch.targets[places], batch.index[rows])


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches one after the other."""
    return batches[0] if len(batches) == 1 else Batch(*map(torch.cat, zip(*batches, strict=True)))


# Training batches of images in memory.


class ArrayLoader:
    """`batch(step)` is a pure function of the data, the settings, the seed and the step."""

    def __init__(
        self,
        data: ArraySet,
        *,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        classes: int,
        device: torch.device | str = "cpu",
        size: tuple[int, int] | None = None,
        interpolation: Interpolation = "bicubic",
        weights: Float[Tensor, " N"] | None = None,
        rows: Sequence[Rows] | None = None,
    ) -> None:
        """`size` is that of the model input; None: images unchanged.

        `rows` are the parts of each batch that this process makes; None: all, as one.
        """
        self.order = Order(
            len(data), batch_size=batch_size, repeats=augment.repeats, seed=seed, weights=weights
        )
        self.maker = BatchMaker(config=augment, seed=seed, mean=mean, std=std, classes=classes)
        self.size = size or (data.images.shape[2], data.images.shape[3])
        self.interpolation = interpolation
        self.rows = rows
        self.broken: dict[Path, str] = {}
        """Unreadable files: always empty here."""
        self._images = data.images.to(device)
        self._labels = data.labels

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once, or `repeats` times."""
        return self.order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Batch of this step."""
        plan = plan_batch(self.order, self.maker.config, self.maker.seed, step, self.rows)
        return joined([self._make(plan, part) for part in plan.parts])

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches of the steps from `start` to before `stop`."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        return map(self.batch, steps)

    def close(self) -> None:
        """No-op: there are no processes."""

    def _make(self, plan: Plan, part: Part) -> Batch:
        index, epoch = plan.index[part.read], plan.epoch[part.read]
        images = self._images.index_select(0, index.to(self._images.device))
        images = resize(images, self.size, self.interpolation)
        if self.maker.config.random_resized_crop is not None:
            seeds = plan.crops[part.read]
            images = resized_crop(images, random_crops(self.size, self.maker.config, seeds))
        labels = self._labels[index]
        batch = self.maker.make(images, labels, index=index, epoch=epoch, draws=part.draws)
        return batch if part.kept is None else only(batch, part.kept)


# Training batches of image files, decoded ahead of time by other processes.


class FileLoader:
    """`batch(step)` depends on data, settings, seed and step; not on workers or earlier calls.

    A broken image is replaced by the next good one of its batch.
    """

    def __init__(
        self,
        data: StoredSet,
        *,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        preprocessing: Preprocessing,
        classes: int,
        device: torch.device | str = "cpu",
        workers: int = 1,
        prefetch: int = 2,
        max_broken: float = 0.2,
        weights: Float[Tensor, " N"] | None = None,
        window: int = WINDOW,
        rows: Sequence[Rows] | None = None,
    ) -> None:
        """`prefetch` batches are decoded ahead; `max_broken` is a share of all the files.

        `window` is the number of shards whose images are shuffled together; `rows` as in
        `ArrayLoader`.
        """
        self.data = data
        self.order = Order(
            len(data),
            batch_size=batch_size,
            repeats=augment.repeats,
            seed=seed,
            weights=weights,
            shards=data.shards(window),
        )
        self.maker = BatchMaker(
            config=augment,
            seed=seed,
            mean=preprocessing.mean,
            std=preprocessing.std,
            classes=classes,
        )
        self.rows = rows
        self.device = device
        self.prefetch = prefetch
        self.max_broken = max_broken
        self.broken: dict[Path, str] = {}
        """Files that could not be read so far, and the reasons."""
        self._lost = 0
        decoder = Decoder(
            preprocessing=preprocessing,
            area=augment.random_resized_crop,
            ratio=augment.crop_ratio,
        )
        self._pool = DecoderPool(
            decoder, workers=workers, index=index_of(data), pin=pinning(device)
        )
        self._reading = ReadingTime()
        self._ahead: dict[int, tuple[Plan, Pending]] = {}
        index = index_of(data)
        self._copies = CopiesAhead(index, window=window) if index and index.copies else None

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once, or `repeats` times."""
        return self.order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Batch of this step; decoding of the following steps starts in the background."""
        with self._reading.waiting():
            plan, pixels, reasons = self._decoded(step)
        advised = decoding_processes(torch.device(self.device))
        hint = self._reading.hint(self._pool.workers, advised=advised)
        if hint is not None:
            log.warning("%s", hint)
        return self._make(plan, pixels, reasons)

    def _decoded(self, step: int) -> tuple[Plan, NDArray[np.uint8], Reasons]:
        """Pixels of this step; those of the following ones are requested."""
        wanted = range(step, step + 1 + (self.prefetch if self._pool.workers else 0))
        for other in [known for known in self._ahead if known not in wanted]:
            self._ahead.pop(other)[1].cancel()
        for each in wanted:
            if each not in self._ahead:
                self._ahead[each] = self._request(each)
        plan, pending = self._ahead.pop(step)
        return plan, *pending.wait()

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches of the steps from `start` to before `stop`."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        return map(self.batch, steps)

    def close(self) -> None:
        """Stop the decoding processes."""
        self._pool.close()
        if self._copies is not None:
            self._copies.close()

    def _request(self, step: int) -> tuple[Plan, Pending]:
        plan = plan_batch(self.order, self.maker.config, self.maker.seed, step, self.rows)
        if self._copies is not None:
            self._copies.want(*self._shards_at(step))
        return plan, self._pool.submit([self._task(plan, row) for row in plan.read.tolist()])

    def _shards_at(self, step: int) -> tuple[list[int], list[int]]:
        """Shards that are read now, and those that are read next."""
        if self.order.shards is None:
            index = index_of(self.data)
            return list(range(0 if index is None else len(index.block_end))), []
        return self.order.shards_at(step)

    def _task(self, plan: Plan, row: int) -> Task:
        return self.data.task(int(plan.index[row])), int(plan.crops[row])

    def _make(self, plan: Plan, pixels: NDArray[np.uint8], reasons: Reasons) -> Batch:
        read = plan.read
        images, shown = torch.from_numpy(pixels), read
        if reasons:
            images, shown = self._replace(plan, images, reasons)
        images = images.to(self.device)
        made = []
        for part in plan.parts:
            places = torch.searchsorted(read, part.read)
            pixels_of = images if len(places) == len(read) else images[places.to(images.device)]
            index, epoch = plan.index[shown[places]], plan.epoch[shown[places]]
            labels = self.data.labels[index]
            batch = self.maker.make(pixels_of, labels, index=index, epoch=epoch, draws=part.draws)
            made.append(batch if part.kept is None else only(batch, part.kept))
        return joined(made)

    def _replace(
        self, plan: Plan, images: UInt8[Tensor, "R C H W"], reasons: Reasons
    ) -> tuple[UInt8[Tensor, "R C H W"], Rows]:
        """Images with the broken ones replaced by the next good ones, and the rows shown."""
        rows = plan.read.tolist()
        good = {row: images[i] for i, row in enumerate(rows) if i not in reasons}
        broken = {rows[i]: reason for i, reason in reasons.items()}
        shown = [self._next_good(plan, row, good, broken) for row in rows]
        self._report(self._faults(plan, broken))
        return torch.stack([good[row] for row in shown]), torch.tensor(shown)

    def _faults(self, plan: Plan, broken: Mapping[int, str]) -> list[Fault]:
        return [self.data.fault(int(plan.index[row]), why) for row, why in broken.items()]

    def _next_good(
        self, plan: Plan, row: int, good: dict[int, Tensor], broken: dict[int, str]
    ) -> int:
        """This row or the next one whose image can be read; further images are read for it."""
        count = len(plan.index)
        for other in (*range(row, count), *range(row)):
            if other not in good and other not in broken:
                pixels, reasons = self._pool.submit([self._task(plan, other)]).wait()
                if reasons:
                    broken[other] = reasons[0]
                else:
                    good[other] = torch.from_numpy(pixels)[0]
            if other in good:
                return other
        self._report(self._faults(plan, broken))
        raise DataError(f"step {plan.step}: none of its {count} images can be read")

    def _report(self, found: Sequence[Fault]) -> None:
        for path, reason, images in found:
            if path not in self.broken:
                log.warning("%s cannot be read and is skipped: %s", path, reason)
                self.broken[path] = reason
                self._lost += images
        if self._lost > self.max_broken * len(self.data):
            path, reason = next(iter(self.broken.items()))
            raise DataError(
                f"{self._lost} of {len(self.data)} images cannot be read, "
                f"more than the {self.max_broken:.0%} allowed; one is {path}: {reason}"
            )


def open_loader(
    data: ImageSet,
    *,
    batch_size: int,
    seed: int,
    augment: AugmentConfig,
    preprocessing: Preprocessing,
    classes: int,
    device: torch.device | str = "cpu",
    workers: int = 1,
    max_broken: float = 0.2,
    weights: Float[Tensor, " N"] | None = None,
    window: int = WINDOW,
    rows: Sequence[Rows] | None = None,
) -> ArrayLoader | FileLoader:
    """Loader for this kind of set; workers are used for files only.

    `weights` are the relative frequencies of the images; None: each once an epoch. `rows` are the
    parts of each batch that this process makes; None: all, as one.
    """
    if isinstance(data, ArraySet):
        return ArrayLoader(
            data,
            batch_size=batch_size,
            seed=seed,
            augment=augment,
            mean=preprocessing.mean,
            std=preprocessing.std,
            classes=classes,
            device=device,
            size=preprocessing.size,
            interpolation=preprocessing.interpolation,
            weights=weights,
            rows=rows,
        )
    return FileLoader(
        data,
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        preprocessing=preprocessing,
        classes=classes,
        device=device,
        workers=workers,
        max_broken=max_broken,
        weights=weights,
        window=window,
        rows=rows,
    )


# Every image once, in order, not augmented; the last batch may be smaller.


def batches_for_evaluation(
    data: ImageSet,
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    device: torch.device | str = "cpu",
    workers: int = 0,
    prefetch: int = 2,
    broken: dict[Path, str] | None = None,
    world: World = ALONE,
) -> Iterator[Batch]:
    """Images prepared by `preprocessing`, bit for bit; unreadable files are added to `broken`.

    A caller that passes `broken` must report them to the user. Of several processes, each gets
    batches of its own.
    """
    order = torch.arange(len(data)) if isinstance(data, ArraySet) else data.reading_order()
    indices = own_items(order.split(batch_size), world)
    if isinstance(data, ArraySet):
        return _array_batches(data, indices, preprocessing, device)
    found = {} if broken is None else broken
    return _file_batches(data, indices, preprocessing, device, workers, prefetch, found)


def _array_batches(
    data: ArraySet,
    indices: Sequence[Rows],
    preprocessing: Preprocessing,
    device: torch.device | str,
) -> Iterator[Batch]:
    for index in indices:
        images = _prepare(data.images[index], preprocessing, device)
        yield Batch(images, data.labels[index].to(device), index)


def _prepare(
    images: Tensor, preprocessing: Preprocessing, device: torch.device | str
) -> Float[Tensor, "B C H W"]:
    as_they_are = (preprocessing.channels, *preprocessing.size)
    if tuple(images.shape[1:]) == as_they_are and preprocessing.crop == 1.0:
        return normalise(images.to(device), preprocessing.mean, preprocessing.std)
    one_by_one = [preprocessing.apply(image.permute(1, 2, 0).numpy()) for image in images.cpu()]
    return torch.from_numpy(np.stack(one_by_one)).to(device)


def _file_batches(
    data: StoredSet,
    indices: Sequence[Rows],
    preprocessing: Preprocessing,
    device: torch.device | str,
    workers: int,
    prefetch: int,
    broken: dict[Path, str],
) -> Iterator[Batch]:
    decoder = Decoder(preprocessing=preprocessing)
    pool = DecoderPool(decoder, workers=workers, index=index_of(data), pin=pinning(device))
    tasks = ((index, [(data.task(number), 0) for number in index.tolist()]) for index in indices)
    try:
        for index, pixels, reasons in pool.stream(tasks, ahead=prefetch):
            for place, reason in reasons.items():
                fault = data.fault(int(index[place]), reason)
                broken[fault.path] = fault.reason
            good = torch.tensor(
                [i for i in range(len(index)) if i not in reasons], dtype=torch.long
            )
            if not len(good):
                continue
            images = torch.from_numpy(pixels)[good].to(device)
            images = normalise(images, preprocessing.mean, preprocessing.std)
            yield Batch(images, data.labels[index[good]].to(device), index[good])
    finally:
        pool.close()
