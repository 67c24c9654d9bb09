"""Training batches in memory: a pure function of the step, every image once an epoch."""

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import draw
from vitlab.data.images import ArraySet
from vitlab.data.loader import ArrayLoader, Batch, batches_for_evaluation, open_loader
from vitlab.data.order import Order, Shards, generator
from vitlab.data.plan import plan_batch
from vitlab.errors import DataError
from vitlab.images.preprocessing import Preprocessing

N, C, H, W, CLASSES = 23, 3, 11, 13, 7
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
EVERYTHING = AugmentConfig(
    flip="random",
    shift=3,
    policy="trivial",
    color_jitter=0.4,
    cutout=3,
    erase=0.5,
    mixup=0.8,
    cutmix=1.0,
    random_resized_crop=(0.3, 1.0),
)


def images(count: int = N, channels: int = C) -> ArraySet:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, channels, H, W), generator=draw, dtype=torch.uint8)
    return ArraySet(images=pixels, labels=torch.arange(count) % CLASSES)


def loader(data: ArraySet | None = None, **changes: Any) -> ArrayLoader:
    settings = {
        "batch_size": 5,
        "seed": 0,
        "augment": AugmentConfig(),
        "mean": MEAN,
        "std": STD,
        "classes": CLASSES,
    }
    return ArrayLoader(images() if data is None else data, **(settings | changes))


def assert_same(one: Batch, other: Batch) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def test_without_augmentation_images_are_as_when_predicting() -> None:
    data = images()
    batch = loader(data).batch(3)
    preprocessing = Preprocessing(size=(H, W), mean=MEAN, std=STD)
    for image, label, index in zip(*batch, strict=True):
        expected = preprocessing.apply(data.images[index].permute(1, 2, 0).numpy())
        np.testing.assert_array_equal(image.numpy(), expected)
        assert label == data.labels[index]


def test_the_same_step_is_the_same_batch_in_any_order() -> None:
    first = loader(augment=EVERYTHING)
    straight = [first.batch(step) for step in range(12)]
    second = loader(augment=EVERYTHING)
    for step in (11, 0, 7, 3, 3, 10):
        assert_same(second.batch(step), straight[step])
    for step, batch in enumerate(second.batches(4, 9), start=4):
        assert_same(batch, straight[step])
    assert_same(next(islice(second.batches(2), 5, None)), straight[7])


def test_nothing_else_draws_or_is_drawn_from() -> None:
    torch.manual_seed(1)
    one = loader(augment=EVERYTHING).batch(2)
    before = torch.get_rng_state()
    torch.manual_seed(2)
    loader(augment=EVERYTHING).batch(9)
    assert_same(loader(augment=EVERYTHING).batch(2), one)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augment", [EVERYTHING, AugmentConfig(flip="alternate", repeats=2)])
def test_a_process_makes_its_rows_of_the_batch(augment: AugmentConfig) -> None:
    size = 14
    whole = loader(augment=augment, batch_size=size)
    divisions = (
        [[(0, 14)]],
        [[(0, 4)], [(4, 9)], [(9, 14)]],
        [[(0, 2), (2, 4), (4, 6)], [(6, 14)]],
    )
    for processes in divisions:
        parts = [[torch.arange(*ends) for ends in own] for own in processes]
        loaders = [loader(augment=augment, batch_size=size, rows=rows) for rows in parts]
        for step in (0, 3):
            found = [each.batch(step) for each in loaders]
            assert [len(b.index) for b in found] == [sum(map(len, rows)) for rows in parts]
            assert_same(Batch(*map(torch.cat, zip(*found, strict=True))), whole.batch(step))


def test_a_process_reads_only_its_rows_and_their_partners() -> None:
    order = Order(N, batch_size=12, repeats=1, seed=0)
    rows = torch.arange(3, 7)
    plain = plan_batch(order, AugmentConfig(flip="random"), 0, 5, [rows])
    assert plain.read.tolist() == rows.tolist()
    mixed = plan_batch(order, EVERYTHING, 0, 5, [rows])
    partners = draw(EVERYTHING, 12, generator(0, "augment", 5)).partner
    assert partners is not None
    assert mixed.read.tolist() == sorted({*rows.tolist(), *partners[rows].tolist()})
    assert mixed.index.equal(order.slots(5)[0])


def test_other_seeds_and_steps_are_other_batches() -> None:
    batches = [
        loader(augment=EVERYTHING, seed=seed).batch(step).images
        for seed, step in ((0, 0), (1, 0), (0, 1))
    ]
    assert not torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"flip": "random"},
        {"flip": "alternate"},
        {"shift": 2},
        {"cutout": 3},
        {"erase": 1.0},
        {"policy": "trivial"},
        {"policy": "randaugment"},
        {"color_jitter": 0.5},
        {"mixup": 0.8},
        {"cutmix": 1.0},
        {"random_resized_crop": (0.2, 0.5)},
        {"repeats": 5},
    ],
    ids=lambda changes: "-".join(map(str, changes.items())),
)
def test_every_setting_changes_the_batch(changes: dict[str, Any]) -> None:
    plain, changed = loader(), loader(augment=AugmentConfig(**changes))
    assert not torch.equal(changed.batch(0).images, plain.batch(0).images)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ({"policy": "randaugment"}, {"policy_ops": 3}),
        ({"policy": "randaugment"}, {"policy_magnitude": 25}),
        ({"random_resized_crop": (0.2, 0.5)}, {"crop_ratio": (1.0, 1.0)}),
    ],
    ids=str,
)
def test_every_setting_of_a_setting_changes_the_batch(
    base: dict[str, Any], changes: dict[str, Any]
) -> None:
    config = AugmentConfig(**base)
    before = loader(augment=config).batch(0).images
    assert not torch.equal(loader(augment=replace(config, **changes)).batch(0).images, before)


def test_alternating_flips_in_batches() -> None:
    data = images()
    turned: dict[int, list[bool]] = {}
    source = loader(data, augment=AugmentConfig(flip="alternate"))
    plain = loader(data)
    for step in range(4 * N // 5):
        batch, as_it_is = source.batch(step), plain.batch(step)
        for image, own, index in zip(batch.images, as_it_is.images, batch.index, strict=True):
            mirrored = torch.equal(image, own.flip(-1))
            assert mirrored or torch.equal(image, own)
            turned.setdefault(int(index), []).append(mirrored)
    for history in turned.values():
        assert all(a != b for a, b in pairwise(history))


@pytest.mark.parametrize("batch_size", [1, 5, 23, 29, 60])
def test_every_image_once_an_epoch_whatever_the_batch_size(batch_size: int) -> None:
    order = Order(N, batch_size=batch_size, repeats=1, seed=0)
    steps = -(-5 * N // batch_size)
    slots = [order.slots(step) for step in range(steps)]
    assert all(len(index) == batch_size for index, _ in slots)
    stream, epochs = (torch.cat(parts)[: 5 * N].view(5, N) for parts in zip(*slots, strict=True))
    for epoch, (order_of_epoch, number) in enumerate(zip(stream, epochs, strict=True)):
        assert order_of_epoch.sort().values.tolist() == list(range(N))
        assert (number == epoch).all()
    assert len({tuple(row) for row in stream.tolist()}) == 5


def test_shards_are_shuffled_and_then_the_images_of_a_window_of_them() -> None:
    sizes = [3, 0, 7, 1, 5, 0, 2, 5]
    assert sum(sizes) == N
    shard_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    shuffled = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    by_shard = shard_of[shuffled].argsort(stable=True)  # image i of the set lies at shuffled[i]
    ends = torch.tensor(sizes).cumsum(0)
    for window in (1, 2, 3, 7):
        shards = Shards(ends=ends, members=by_shard, window=window)
        order = Order(N, batch_size=5, repeats=1, seed=0, shards=shards)
        again = Order(N, batch_size=5, repeats=1, seed=0, shards=shards)
        slots = [order.slots(step) for step in range(N)]
        for step in (11, 3, 22):
            assert torch.equal(again.slots(step)[0], slots[step][0])
        stream = torch.cat([index for index, _ in slots]).view(5, N)
        assert len({tuple(row) for row in stream.tolist()}) == 5
        for row in stream:
            assert row.sort().values.tolist() == list(range(N))
            seen = shard_of[shuffled][row].tolist()
            for shard in set(seen):  # between its first and last image, few other shards
                first, last = seen.index(shard), N - 1 - seen[::-1].index(shard)
                assert len(set(seen[first : last + 1])) <= window
    with pytest.raises(DataError, match=r"balance=sampling .* all 8 shards .* shard_window=8"):
        Order(N, batch_size=5, repeats=1, seed=0, shards=shards, weights=torch.ones(N))


def test_repeats_stand_side_by_side_and_differ() -> None:
    source = loader(batch_size=6, augment=AugmentConfig(repeats=3, flip="random", shift=3))
    assert source.steps_per_epoch == N / 2
    batch = source.batch(0)
    assert batch.index.view(2, 3).unique(dim=1).shape == (2, 1)
    assert not torch.equal(batch.images[0], batch.images[1])
    seen = Counter(i for step in range(N) for i in source.batch(step).index.tolist())
    assert set(seen.values()) == {6}


@pytest.mark.parametrize(("batch_size", "repeats"), [(5, 2), (0, 1), (-3, 3)])
def test_batches_that_cannot_be_made_are_refused(batch_size: int, repeats: int) -> None:
    with pytest.raises(DataError, match=f"batch_size {batch_size} .* repeats {repeats}"):
        loader(batch_size=batch_size, augment=AugmentConfig(repeats=repeats))


def test_no_images_are_refused() -> None:
    with pytest.raises(DataError, match="no images"):
        loader(images(0))


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="images have 1 channels, mean"):
        loader(images(channels=1)).batch(0)


def test_mixed_targets_are_distributions() -> None:
    batch = loader(augment=AugmentConfig(mixup=0.8, cutmix=1.0)).batch(0)
    assert batch.targets.shape == (5, CLASSES)
    torch.testing.assert_close(batch.targets.sum(dim=1), torch.ones(5))
    assert loader().batch(0).targets.dtype == torch.int64


def test_grey_images_go_through_everything() -> None:
    batch = loader(images(channels=1), augment=EVERYTHING, mean=(0.5,), std=(0.5,)).batch(0)
    assert batch.images.shape == (5, 1, H, W)
    assert batch.images.isfinite().all()


def test_blank_places_have_the_mean_colour() -> None:
    batch = loader(augment=AugmentConfig(cutout=2 * max(H, W))).batch(0)
    assert (batch.images == 0).all()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(22, 26), (20, 20), (5, 9)])
def test_another_size_is_what_pillow_makes_of_it(size: tuple[int, int], interpolation: Any) -> None:
    noise = images()
    # Pillow cuts off what bicubic overshoots after each of its two passes: not here.
    data = replace(noise, images=noise.images // 3 + 80)
    batch = loader(data, size=size, interpolation=interpolation, mean=(0.0,) * C, std=(1.0,) * C)
    preprocessing = Preprocessing(
        size=size, mean=(0.0,) * C, std=(1.0,) * C, interpolation=interpolation
    )
    for image, index in zip(*batch.batch(0)[::2], strict=True):
        expected = preprocessing.apply(data.images[index].permute(1, 2, 0).numpy())
        # It also rounds after each of them.
        assert np.abs(image.numpy() - expected).max() * 255 < 1.5


def test_an_interpolation_that_does_not_exist_in_memory_is_refused() -> None:
    with pytest.raises(DataError, match="'lanczos' of images in memory; valid: nearest"):
        loader(size=(5, 5), interpolation="lanczos").batch(0)


def test_the_loader_for_a_set() -> None:
    preprocessing = Preprocessing(size=(H, W), mean=MEAN, std=STD)
    made = open_loader(
        images(),
        batch_size=5,
        seed=0,
        augment=EVERYTHING,
        preprocessing=preprocessing,
        classes=CLASSES,
    )
    assert_same(made.batch(1), loader(augment=EVERYTHING).batch(1))
    assert made.broken == {}
    made.close()


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_evaluation_sees_every_image_once(batch_size: int) -> None:
    data = images()
    preprocessing = Preprocessing(size=(H, W), mean=MEAN, std=STD)
    found = list(batches_for_evaluation(data, batch_size=batch_size, preprocessing=preprocessing))
    assert [len(batch.index) for batch in found][:-1] == [batch_size] * (len(found) - 1)
    assert torch.cat([batch.index for batch in found]).tolist() == list(range(N))
    assert torch.equal(torch.cat([batch.targets for batch in found]), data.labels)


@pytest.mark.parametrize(
    "changes", [{}, {"size": (8, 8)}, {"crop": 0.8}, {"size": (30, 20), "keep_aspect": False}]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_prepares_as_predicting_does(changes: dict[str, Any], channels: int) -> None:
    data = images(channels=channels)
    preprocessing = Preprocessing(**({"size": (H, W), "mean": MEAN, "std": STD} | changes))
    (batch,) = batches_for_evaluation(data, batch_size=N, preprocessing=preprocessing)
    for image, result in zip(data.images, batch.images, strict=True):
        expected = preprocessing.apply(image.permute(1, 2, 0).numpy())
        np.testing.assert_array_equal(result.numpy(), expected)
