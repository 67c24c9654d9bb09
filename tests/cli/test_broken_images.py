"""A folder with thirty broken files of ten kinds trains to the end and lists all of them."""

import html
import itertools
import json
import os
from pathlib import Path

import pytest

from command import Command
from data.picture_files import encoded, picture, png_of
from vitlab.errors import InputError
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

GOOD, EACH = 270, 3
CLASSES = ("Äpfel & Birnen", "dogs", "貓")
TINY = ("--set", "model=vit_test", "--batch-size", 8, "--steps", 3, "--set", "evaluations=1")


def bad_checksum(png: bytes) -> bytes:
    """A PNG whose header has another checksum than the file says."""
    return png[:29] + bytes([png[29] ^ 1]) + png[30:]


def contents(seed: int) -> dict[str, bytes]:
    """Files of eight kinds that nobody can read."""
    image = picture(1000 + seed)
    jpeg, webp = encoded(image, "JPEG"), encoded(image, "WEBP")
    return {
        "truncated.jpg": jpeg[: len(jpeg) * 2 // 3],
        "empty.jpg": b"",
        "page.jpg": f"<html>404: image {seed}</html>".encode(),
        "checksum.png": bad_checksum(encoded(image, "PNG")),
        "half.webp": webp[: len(webp) // 2],
        "header.gif": encoded(image, "GIF")[:12],
        "bomb.png": png_of(50_000 + seed, 50_000),
        "nothing.png": png_of(0, seed),
    }


def write_thirty(folder: Path) -> list[Path]:
    """Ten kinds of broken files, three of each."""
    for seed in range(EACH):
        for name, content in contents(seed).items():
            (folder / f"{seed} {name}").write_bytes(content)
        (folder / f"{seed} gone.jpg").symlink_to("nowhere.jpg")
        (folder / f"{seed} loop.jpg").symlink_to(f"{seed} loop.jpg")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 files in three classes."""
    folder = tmp_path_factory.mktemp("data") / "my images"
    for label in CLASSES:
        (folder / label).mkdir(parents=True)
    (folder / CLASSES[0] / "folder.jpg").mkdir()
    for number in range(GOOD):
        name = folder / CLASSES[number % len(CLASSES)] / f"{number}.jpg"
        name.write_bytes(encoded(picture(number), "JPEG"))
    assert len(write_thirty(folder / CLASSES[1])) == GOOD // len(CLASSES) + 30
    return folder


def broken_in(folder: Path) -> dict[str, str]:
    """What training's own decoder says of the files that it cannot read."""
    size = Preprocessing(size=(32, 32), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    found = {}
    for path in folder.rglob("*.*"):
        if path.name == "folder.jpg":
            continue
        try:
            Decoder(preprocessing=size).read(os.fspath(path), 0)
        except InputError as error:
            found[str(path)] = str(error)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_thirty_of_three_hundred(
    command: Command, images: Path, tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    outcome = command("train", "--data", images, "--out", run, *TINY, "--set", f"workers={workers}")
    assert outcome.code == 0, outcome.err
    expected = broken_in(images)
    assert len(expected) == 30
    assert len(set(expected.values())) >= 7
    assert json.loads((run / "broken.json").read_text()) == expected
    page = (run / "report.html").read_text()
    assert "30 images could not be read" in page
    for path, reason in expected.items():
        assert f"{html.escape(path)}</code></td><td>{html.escape(reason)}" in page
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "30 of 300 images cannot be read" in told[0].getMessage()


def test_splits_of_the_users_own_and_nothing_held_out(
    command: Command, images: Path, tmp_path: Path
) -> None:
    """One step of eight images reaches few files; the test split is read at the end."""
    seeds = itertools.count()
    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for number in range(20):
                path = tmp_path / "data" / split / label / f"{number}.jpg"
                path.write_bytes(encoded(picture(next(seeds)), "JPEG"))
        (tmp_path / "data" / split / "b" / "bad.jpg").write_bytes(b"bad")
    run = tmp_path / "run"
    outcome = command(
        *("train", "--data", tmp_path / "data", "--out", run, *TINY[:4]),
        *("--steps", 1, "--set", "hold_out=0", "--json"),
    )
    assert outcome.code == 0, outcome.err
    listed = [Path(path) for path in json.loads((run / "broken.json").read_text())]
    assert [path.parts[-3:] for path in listed] == [
        ("test", "b", "bad.jpg"),
        ("train", "b", "bad.jpg"),
    ]


def test_too_many_broken_files_stop_before_anything_is_written(
    command: Command, images: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    told = command("train", "--data", images, "--out", run, *TINY, "--set", "max_broken=0.05")
    assert "30 of 300 images cannot be read, more than the 5% allowed (max_broken)" in told.mistake
    assert not run.exists()


def folder_with(root: Path, *names: str, content: bytes | None = None) -> Path:
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for image in range(4):
            picture_bytes = encoded(picture(10 * number + image), "JPEG")
            (root / name / f"{image}.jpg").write_bytes(
                picture_bytes if content is None else content
            )
    root.mkdir(exist_ok=True)
    return root


@pytest.mark.parametrize(
    ("names", "content", "message"),
    [
        ((), None, "is empty; valid: one folder of images for each class"),
        (("cat",), None, "holds one class, 'cat'; valid: at least 2"),
        (("Cat", "cat"), None, "holds the classes 'Cat' and 'cat', which differ only in case"),
        (("cat", "dog"), b"x", "none of the 8 images in"),
    ],
)
def test_folders_that_nothing_can_be_learned_from(
    command: Command, tmp_path: Path, names: tuple[str, ...], content: bytes | None, message: str
) -> None:
    folder, run = tmp_path / "images", tmp_path / "run"
    if len({name.lower() for name in names}) < len(names):
        (tmp_path / "X").mkdir()
        if (tmp_path / "x").exists():
            pytest.skip("this disk does not tell upper from lower case")
    folder_with(folder, *names, content=content)
    told = command("train", "--data", folder, "--out", run, *TINY).mistake
    assert message in told
    assert not run.exists()


def test_a_class_of_broken_files_alone_is_named(command: Command, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "images", "cat", "dog")
    for path in (folder / "dog").iterdir():
        path.write_bytes(b"")
    told = command(
        "train", "--data", folder, "--out", tmp_path / "run", *TINY, "--set", "max_broken=0.9"
    ).mistake
    assert "none of the images of one class can be read" in told
    assert "dog" in told
