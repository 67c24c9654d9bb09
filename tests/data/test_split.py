"""Laws of the held-out part: in proportion, duplicates on one side, fixed by the seed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.data import duplicates
from vitlab.data.duplicates import SIDE, array_thumbnails, duplicate_groups, join_near, near_pairs
from vitlab.data.images import ArraySet, FileSet
from vitlab.data.split import class_quotas, hold_out
from vitlab.errors import DataError


def noise(
    n: int, *, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0
) -> torch.Tensor:
    """Images that have nothing to do with one another."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(256, (n, channels, 8, 8), generator=generator).float()
    images = torch.nn.functional.interpolate(coarse, (height, width))
    return images.to(torch.uint8)


def made(n: int, classes: int = 5, seed: int = 0) -> ArraySet:
    labels = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed + 1))
    return ArraySet(images=noise(n, seed=seed), labels=labels)


def keys(data: ArraySet) -> list[bytes]:
    return [image.numpy().tobytes() for image in data.images]


def test_every_image_is_on_exactly_one_side() -> None:
    data = made(503)
    train, held = hold_out(data, share=0.1, seed=0)
    assert len(held) == 50
    assert len(train) == 453
    assert sorted(keys(train) + keys(held)) == sorted(keys(data))


def test_images_keep_their_labels_and_order() -> None:
    data = made(211)
    place = {key: i for i, key in enumerate(keys(data))}
    for part in hold_out(data, count=37, seed=3):
        index = [place[key] for key in keys(part)]
        assert index == sorted(index)
        assert part.labels.tolist() == data.labels[index].tolist()


def test_each_class_is_held_out_in_proportion() -> None:
    sizes = [400, 200, 100, 50, 7, 1]
    labels = torch.arange(6).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    _, held = hold_out(ArraySet(images=noise(len(labels)), labels=labels), share=0.1, seed=0)
    assert held.labels.bincount(minlength=6).tolist() == [40, 20, 10, 5, 1, 0]


def test_quotas_add_up_and_leave_one_of_each_class() -> None:
    assert class_quotas(np.array([5, 5, 5]), 4).tolist() == [2, 1, 1]
    assert class_quotas(np.array([1, 99]), 50).tolist() == [0, 50]
    assert class_quotas(np.array([2, 0, 2]), 3).tolist() == [1, 0, 1]
    random = np.random.default_rng(0)
    for _ in range(100):
        sizes = random.integers(2, 1000, size=7)
        wanted = int(random.integers(1, sizes.sum() // 2))
        quotas = class_quotas(sizes, wanted)
        assert quotas.sum() == wanted
        assert (abs(quotas - sizes * wanted / sizes.sum()) < 1).all()


def test_the_seed_decides() -> None:
    data = made(300)
    first, again, other = (hold_out(data, count=60, seed=seed)[1] for seed in (1, 1, 2))
    assert keys(first) == keys(again)
    assert keys(first) != keys(other)
    # Independent draws of a fifth share a fifth of each other: 12 of 60, not nearly all.
    assert len(set(keys(first)) & set(keys(other))) < 30


def test_the_split_is_the_same_everywhere_and_ever_after() -> None:
    _, held = hold_out(made(97), count=9, seed=5)
    places = {key: i for i, key in enumerate(keys(made(97)))}
    assert [places[key] for key in keys(held)] == EXPECTED


EXPECTED = [5, 10, 41, 42, 54, 62, 81, 87, 95]


def with_duplicates() -> tuple[ArraySet, torch.Tensor]:
    """Images, some of them two to five times, exact or a little changed; and who is whose."""
    base = noise(200)
    times = torch.ones(200, dtype=torch.int64)
    times[:60] = torch.arange(60) % 4 + 2
    who = torch.arange(200).repeat_interleave(times)
    generator = torch.Generator().manual_seed(9)
    who = who[torch.randperm(len(who), generator=generator)]
    images = base[who].int()
    images += (
        torch.randint(-6, 7, images.shape, generator=generator)
        * (who % 2 == 0)[:, None, None, None]
    )
    return ArraySet(images=images.clamp(0, 255).byte(), labels=who % 3), who


def test_groups_are_exactly_the_duplicates() -> None:
    data, who = with_duplicates()
    groups = duplicate_groups(data)
    same = who[:, None] == who[None]
    assert torch.equal(groups[:, None] == groups[None], same)
    assert torch.equal(groups, same.int().argmax(dim=1))


@pytest.mark.parametrize("seed", range(5))
def test_duplicates_are_never_on_both_sides(seed: int) -> None:
    data, who = with_duplicates()
    numbered = ArraySet(images=data.images, labels=data.labels)
    place = {key: i for i, key in enumerate(keys(numbered))}
    train, held = hold_out(numbered, share=0.2, seed=seed)
    sides = [{int(who[place[key]]) for key in keys(part)} for part in (train, held)]
    assert not sides[0] & sides[1]
    quotas = class_quotas(data.labels.bincount().numpy(), round(0.2 * len(data)))
    assert held.labels.bincount().tolist() == quotas.tolist()


def test_duplicates_with_different_labels_stay_together() -> None:
    images = noise(60)
    images[1], images[31] = images[0], images[0]
    labels = torch.arange(2).repeat_interleave(30)
    for seed in range(10):
        _, held = hold_out(ArraySet(images=images, labels=labels), share=0.5, seed=seed)
        assert keys(held).count(images[0].numpy().tobytes()) in (0, 3)


def groups_of(*images: torch.Tensor) -> list[int]:
    labels = torch.zeros(len(images), dtype=torch.int64)
    return duplicate_groups(ArraySet(images=torch.stack(images), labels=labels)).tolist()


def photograph(seed: int) -> torch.Tensor:
    """Amplitudes that fall with the frequency, as in nature; [3, 64, 64]."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.hypot(torch.fft.fftfreq(64)[:, None], torch.fft.rfftfreq(64)[None])
    spectrum = torch.fft.rfft2(torch.randn(3, 64, 64, generator=generator)) / (waves + 0.02)
    pixels = torch.fft.irfft2(spectrum)
    return (127 + 50 * pixels / pixels.std()).clamp(0, 255).byte()


LUMA = torch.tensor([0.299, 0.587, 0.114])[:, None, None]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.float() * 0.7 + 40,
        lambda image: (image.float() + 12 * torch.randn(image.shape)).clamp(0, 255),
        lambda image: image.roll(1, dims=2),
        lambda image: (image * LUMA).sum(dim=0).expand(3, -1, -1),
    ],
    ids=["contrast", "noise", "shift", "grey"],
)
def test_the_same_picture_a_little_changed_is_a_duplicate(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    for seed in range(5):
        image, other = photograph(seed), photograph(seed + 5)
        assert groups_of(image, other, change(image).byte()) == [0, 1, 0]


def test_unrelated_photographs_are_no_duplicates() -> None:
    assert groups_of(*map(photograph, range(100))) == list(range(100))


def test_blank_images_are_one_picture_whatever_their_noise() -> None:
    torch.manual_seed(0)
    blanks = [torch.full((3, 64, 64), 200.0) + torch.randn(3, 64, 64) for _ in range(5)]
    assert groups_of(photograph(0), *(blank.byte() for blank in blanks)) == [0, 1, 1, 1, 1, 1]


def test_pairs_agree_with_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "ROWS", 7)
    monkeypatch.setattr(duplicates, "COLUMNS", 11)
    monkeypatch.setattr(duplicates, "PAIRS", 13)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((30, 17))[random.integers(30, size=301)]
    vectors += 0.25 * random.standard_normal(vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = vectors @ vectors.T >= 0.95
    found = {
        (int(a), int(b)) for i, j, _ in near_pairs(vectors, 0.95) for a, b in zip(i, j, strict=True)
    }
    assert found == {(a, b) for a, b in np.argwhere(near).tolist() if a < b}
    monkeypatch.setattr(duplicates, "COSINES", (0.95,))
    linked = near
    while not np.array_equal(linked, grown := linked @ linked):
        linked = grown
    groups = join_near(np.arange(301), np.arange(301), vectors)
    assert 31 < len(np.unique(groups)) < 301
    assert np.array_equal(groups[:, None] == groups[None], linked)


def test_where_everything_is_alike_only_the_same_is_the_same() -> None:
    """Two hundred pictures that share most of what is seen, each with a copy."""
    common = photograph(0).float()
    images = [(0.85 * common + 0.15 * photograph(i + 1)).byte() for i in range(200)]
    copies = [(image.float() + 1).byte() for image in images]
    assert groups_of(*images, *copies) == [*range(200), *range(200)]


def test_the_transform_is_scipys() -> None:
    fft = pytest.importorskip("scipy.fft")
    image = photograph(3)[0, :16, :16].numpy()
    coefficients = fft.dctn(image.astype(float), norm="ortho")[:8, :8]
    weighted = coefficients * np.hypot(*np.indices((8, 8)))
    weighted[0, 0] = duplicates.NOISE * np.linalg.norm(np.hypot(*np.indices((8, 8))))
    expected = weighted.reshape(-1) / np.linalg.norm(weighted)
    np.testing.assert_allclose(duplicates.describe(image[None])[0], expected, atol=1e-12)


def test_thumbnails_are_means_of_pieces() -> None:
    image = torch.zeros(1, 1, 28, 20, dtype=torch.uint8)
    image[:, :, :2] = 200
    small = array_thumbnails(image.numpy())[0]
    reference = torch.nn.functional.adaptive_avg_pool2d(image.double(), SIDE)[0, 0]
    assert np.abs(small - reference.numpy()).max() <= 2  # rounded down twice
    tiny = noise(3, channels=1, height=8, width=5)
    assert np.array_equal(array_thumbnails(tiny.numpy()), tiny.numpy()[:, 0])


def test_grey_is_what_pillow_makes() -> None:
    images = noise(5, height=16, width=16)
    small = array_thumbnails(images.numpy())
    for image, row in zip(images, small, strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).convert("L")
        assert np.abs(np.asarray(pillow).astype(int) - row).max() <= 1


def test_beyond_the_limit_only_exact_duplicates_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duplicates, "NEAR_LIMIT", 3)
    images = noise(4)
    images[2], images[3] = images[0], images[1] // 2 + images[1] - images[1] // 2
    images[3, 0, 0, 0] ^= 1
    data = ArraySet(images=images, labels=torch.zeros(4, dtype=torch.int64))
    assert duplicate_groups(data).tolist() == [0, 1, 0, 3]
    assert "no near duplicates are looked for" in caplog.text


def test_files_are_compared_by_content_and_by_look(tmp_path: Path) -> None:
    pictures = noise(4, height=96, width=120)
    paths = []

    def save(picture: int, name: str, **options: object) -> None:
        pixels = pictures[picture].permute(1, 2, 0).contiguous().numpy()
        image = Image.fromarray(pixels)
        if "size" in options:
            image = image.resize(options.pop("size"))
        image.save(tmp_path / name, **options)
        paths.append(tmp_path / name)

    save(0, "0.png")
    save(0, "0.jpg", quality=80)
    save(1, "1.jpg")
    save(2, "2.jpg", quality=95)
    save(2, "2 small.jpg", size=(60, 48))
    (tmp_path / "1 copy.jpg").write_bytes((tmp_path / "1.jpg").read_bytes())
    turned = Image.fromarray(pictures[3].permute(1, 2, 0).contiguous().numpy())
    save(3, "3.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "3 turned.jpg", exif=exif)
    (tmp_path / "broken 1.jpg").write_bytes(b"x" * 99)
    (tmp_path / "broken 2.jpg").write_bytes(b"x" * 99)
    (tmp_path / "broken 3.jpg").write_bytes(b"y" * 99)
    paths += [tmp_path / "1 copy.jpg", tmp_path / "3 turned.jpg", tmp_path / "gone.jpg"]
    paths += [tmp_path / f"broken {i}.jpg" for i in (1, 2, 3)]
    data = FileSet(paths=tuple(paths), labels=torch.zeros(len(paths), dtype=torch.int64))
    groups = {path.name: int(i) for path, i in zip(paths, duplicate_groups(data), strict=True)}
    first = {path.name: i for i, path in enumerate(paths)}
    assert groups == first | {
        "0.jpg": first["0.png"],
        "1 copy.jpg": first["1.jpg"],
        "2 small.jpg": first["2.jpg"],
        "3 turned.jpg": first["3.png"],
        "broken 2.jpg": first["broken 1.jpg"],
    }


def test_many_copies_of_one_image_are_no_trouble() -> None:
    images = noise(3_001)
    images[1:2_500] = images[:1]
    images[2_000:2_500, 0, 0] += 1
    labels = torch.arange(3_001) % 2
    train, held = hold_out(ArraySet(images=images, labels=labels), share=0.1, seed=0)
    assert len(train) + len(held) == 3_001
    assert len(held) == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share 0.0 is not between 0 and 1"),
        ({"share": 1.5}, "share 1.5 is not between 0 and 1"),
        ({"count": 10}, "10 of 10 images cannot be held out; valid: 1 to 9"),
        ({"count": 0}, "0 of 10 images cannot be held out"),
        ({}, "either a share or a count"),
        ({"share": 0.1, "count": 1}, "either a share or a count"),
    ],
)
def test_impossible_parts_are_one_line(options: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        hold_out(made(10), seed=0, **options)


def test_nothing_but_duplicates_cannot_be_split() -> None:
    data = ArraySet(images=noise(1).expand(10, -1, -1, -1), labels=torch.arange(10) % 2)
    with pytest.raises(DataError, match="none of 10 images can be held out"):
        hold_out(data, share=0.2, seed=0)


def test_labels_must_fit_the_images(no_type_checks: None) -> None:
    with pytest.raises(DataError, match=r"10 images with labels of shape \(9,\) and torch.int64"):
        ArraySet(images=noise(10), labels=torch.zeros(9, dtype=torch.int64))
    with pytest.raises(DataError, match=r"torch.int32; valid: one int64 label an image"):
        FileSet(paths=(Path("a"),), labels=torch.zeros(1, dtype=torch.int32))
