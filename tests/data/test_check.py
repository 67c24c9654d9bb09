"""What is wrong with a folder, against one in which everything is wrong in known numbers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.messy_folder import EXPECTED, GOOD, make_messy, photograph
from data.picture_files import encoded
from vitlab.data.check import check as check_module
from vitlab.data.check.check import Check, check_folder, write_check_sheet
from vitlab.data.check.findings import KINDS, Finding
from vitlab.data.duplicates import compare_files
from vitlab.data.images import FileSet
from vitlab.errors import DataError


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_messy(tmp_path_factory.mktemp("data") / "pets")


@pytest.fixture(scope="module")
def check(messy: Path) -> Check:
    return check_folder(messy)


def fill(root: Path, *names: str) -> Path:
    """A different picture under each name."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(photograph(seed), "PNG"))
    return root


def named(check: Check, name: str) -> Finding:
    (found,) = (found for found in check.findings if found.name == name)
    return found


def names(check: Check) -> set[str]:
    return {found.name for found in check.findings}


def places(check: Check, name: str) -> set[str]:
    return {path for item in named(check, name).items for path in item.paths}


def test_everything_is_found_and_counted(check: Check) -> None:
    assert {found.name: found.count for found in check.findings} == EXPECTED
    assert check.serious


def test_every_kind_is_in_the_example_or_has_a_test_of_its_own() -> None:
    assert set(KINDS) - set(EXPECTED) == {
        "no_classes",
        "one_class",
        "no_decoder",
        "foreign",
    }


def test_findings_come_in_the_order_of_the_table_serious_ones_first(check: Check) -> None:
    found = [found.name for found in check.findings]
    assert found == [name for name in KINDS if name in found]
    serious = [kind.serious for kind in KINDS.values()]
    assert serious == sorted(serious, reverse=True)


def test_images_are_counted_by_class_and_split(check: Check) -> None:
    assert check.counts == {
        "Dog": {"val": 1},
        "cat": {"train": GOOD + 10, "val": 4},
        "dog": {"train": GOOD + 2},
        "ghost": {"train": 0, "val": 1},
        "owl": {"train": GOOD + 1},
        "rare": {"train": 1, "val": 1},
        "stranger": {"val": 1},
    }
    assert check.splits == ("train", "val")
    assert check.images == sum(sum(counts.values()) for counts in check.counts.values())


def test_sizes_are_those_of_upright_images(check: Check) -> None:
    assert check.height is not None
    assert check.width is not None
    assert (check.height.least, check.height.median, check.height.most) == (16, 96, 104)
    assert (check.width.least, check.width.median, check.width.most) == (16, 104, 200)


def test_copies_are_named_with_where_they_stand(check: Check) -> None:
    across = named(check, "across_splits")
    assert {(item.paths, item.detail) for item in across.items} == {
        (("train/cat/00.jpg", "val/cat/same 1.jpg"), "bit for bit"),
        (("train/cat/01.jpg", "val/cat/same 2.jpg"), "bit for bit"),
        (("train/cat/02.jpg", "val/cat/nearly.jpg"), "nearly the same"),
    }
    assert across.line == (
        "3 images of val also in train (2 bit for bit): "
        "the accuracy on val will look better than it is"
    )
    assert places(check, "conflicting") == {"train/dog/02.jpg", "train/owl/no owl.jpg"}
    assert named(check, "copies").advice.startswith(
        "that repeat an earlier image of their class (1 bit"
    )


def test_broken_files_are_named_with_the_reason(check: Check) -> None:
    reasons = {
        Path(path).name: item.detail
        for name in ("truncated", "not_images", "unreadable", "too_large")
        for item in named(check, name).items
        for path in item.paths
    }
    expected = {
        "cut.jpg": "truncated",
        "cut.png": "truncated",
        "paper.jpg": "a PDF document, not an image",
        "page.jpg": "an HTML page, not an image",
        "text.png": "not an image of a known format",
        "empty.jpg": "an empty file",
        "gone.jpg": "No such file",
        "one pixel.png": "1 x 1 pixels",
        "large.png": "900,000,000 pixels",
        "rather large.png": "10000 x 10000 pixels",
    }
    assert reasons.keys() == expected.keys()
    for name, reason in expected.items():
        assert reason in reasons[name], name


def test_classes_are_named_by_their_folders(check: Check) -> None:
    assert places(check, "case_classes") == {"train/dog", "val/Dog"}
    assert places(check, "untrained_classes") == {"val/stranger"}
    assert places(check, "unjudged_classes") == {"train/owl"}
    assert places(check, "empty_classes") == {"train/ghost"}
    assert places(check, "imbalance") == places(check, "few") == {"train/rare"}


def test_the_odd_are_told_apart(check: Check) -> None:
    cat = {
        "wrong_ending": {"really png.jpg"},
        "rotated": {"turned.jpg"},
        "animated": {"moving.gif"},
        "grey": {"grey.jpg", "sixteen.png"},
        "cmyk": {"cmyk.jpg"},
        "deep": {"sixteen.png", "sixteen colours.png"},
        "transparent": {"clear.png"},
        "palette": {"palette.png"},
        "narrow": {"strip.png"},
        "small": {"icon.png"},
    }
    for name, expected in cat.items():
        assert places(check, name) == {f"train/cat/{file}" for file in expected}


def test_a_raised_limit_lets_large_images_in(
    messy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(tmp_path, "a/1.png", "b/2.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 104 * 96 // 3)  # also beyond the double
    assert named(check_folder(tmp_path), "too_large").count == 2
    monkeypatch.setenv("VITLAB_MAX_PIXELS", str(104 * 96))
    assert check_folder(tmp_path).images == 2


def test_a_clean_folder_has_no_findings(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{label}/{i}.png" for label in "ab" for i in range(10)))
    check = check_folder(tmp_path)
    assert check.findings == ()
    assert check.counts == {"a": {"": 10}, "b": {"": 10}}


def test_images_without_classes_are_looked_at_all_the_same(tmp_path: Path) -> None:
    fill(tmp_path, "1.png", "2.png")
    shutil.copy(tmp_path / "1.png", tmp_path / "3.png")
    check = check_folder(tmp_path)
    assert names(check) == {"no_classes", "loose", "copies"}
    assert named(check, "loose").count == 3
    assert check.serious


def test_nothing_but_broken_files_can_be_checked(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(b"%PDF")
    check = check_folder(tmp_path)
    assert (check.images, check.height) == (0, None)
    assert names(check) == {"not_images", "empty_classes"}


def test_a_single_class_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "val/a/2.png")
    assert {"one_class", "few", "unsplit"} == names(check_folder(tmp_path))


def test_copies_between_all_splits_are_told_pair_by_pair(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/9.png", "test/b/4.png")
    shutil.copy(tmp_path / "train/a/1.png", tmp_path / "test/b/5.png")
    shutil.copy(tmp_path / "val/a/3.png", tmp_path / "test/b/6.png")
    lines = [f.line for f in check_folder(tmp_path).findings if f.name == "across_splits"]
    assert [line.partition(" (")[0] for line in lines] == [
        "1 image of test also in train",
        "1 image of val also in test",
    ]


def test_small_is_measured_by_the_others(tmp_path: Path) -> None:
    for label in "ab":
        for i in range(5):
            path = tmp_path / label / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            photograph(10 * ord(label) + i, side=24).resize((28, 28)).save(path)
    assert "small" not in names(check_folder(tmp_path))
    Image.open(tmp_path / "a" / "0.png").resize((9, 28)).save(tmp_path / "a" / "0.png")
    assert places(check_folder(tmp_path), "small") == {"a/0.png"}


def test_signals_are_neither_small_nor_alike(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    for label, waves in (("slow", 3), ("fast", 11)):
        (tmp_path / label).mkdir()
        for i in range(4):
            phase = 2 * np.pi * (waves * np.arange(256) / 256 + draw.random())
            np.save(tmp_path / label / f"{i}.npy", (128 + 99 * np.sin(phase)).astype(np.uint8))
    (tmp_path / "slow" / "4.npy").write_bytes((tmp_path / "slow" / "0.npy").read_bytes())
    found = check_folder(tmp_path)
    assert "small" not in names(found)
    assert places(found, "copies") == {"slow/0.npy", "slow/4.npy"}  # equal files alone
    files = sorted(tmp_path.rglob("*.npy"))
    data = FileSet(paths=tuple(files), labels=torch.zeros(len(files), dtype=torch.int64))
    groups, broken = compare_files(data)
    assert (len(set(groups.tolist())), broken) == (8, {})


def test_beyond_the_limit_only_equal_files_are_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check_module, "NEAR_LIMIT", 3)
    fill(tmp_path, "a/1.png", "b/2.png")
    shutil.copy(tmp_path / "a/1.png", tmp_path / "a/same.png")
    Image.open(tmp_path / "b/2.png").save(tmp_path / "b/nearly.jpg")
    assert places(check_folder(tmp_path), "copies") == {"a/1.png", "a/same.png"}
    assert "only equal files" in caplog.text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root.mkdir(), "is empty; valid: one folder of images for each class"),
        (lambda root: root.write_text("x"), "is not a folder; valid"),
        (lambda root: None, "no such folder; valid"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    root = tmp_path / "data"
    make(root)
    with pytest.raises(DataError, match=message) as caught:
        check_folder(root)
    assert str(root) in str(caught.value)


def test_progress_ends_at_the_number_of_files(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/2.png", "b/3.png")
    seen: list[tuple[int, int]] = []
    check_folder(tmp_path, watch=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (3, 3)]


def test_the_sheet_shows_examples_of_each_finding(check: Check, tmp_path: Path) -> None:
    write_check_sheet(tmp_path / "sheet.png", check)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.height > sheet.width > 1000


def test_real_photographs_have_no_copies(shared: Path) -> None:
    check = check_folder(shared / "data" / "imagenette-mini")
    assert (check.images, len(check.counts)) == (1500, 10)
    assert {found.name: found.count for found in check.findings} == {"grey": 23}
