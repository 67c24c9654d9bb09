"""Wrong input of every kind, to every command that may be given it: one line, nothing written."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Command
from data.picture_files import encoded, picture, png_of
from jobs.classifiers import LABELS, saved_model

EACH = 3
FILES = {
    "dot.png": (encoded(picture(0, 1, 1), "PNG"), "1 x 1 pixels; valid: at least 2 in all"),
    "huge.png": (
        png_of(30_000, 30_000),
        "900,000,000 pixels; valid: at most 89,478,485 in all "
        "(or raise the limit: VITLAB_MAX_PIXELS=900000000)",
    ),
    "film.gif": (
        encoded(picture(0), "GIF", save_all=True, append_images=[picture(1)]),
        "animated (GIF); valid: one image, such as one frame as PNG",
    ),
    "pages.tif": (
        encoded(picture(0), "TIFF", save_all=True, append_images=[picture(1)]),
        "several pages (TIFF); valid: one image, such as one frame as PNG",
    ),
    "paper.jpg": (b"%PDF-1.7\n%\xff\n", "a PDF document, not an image; valid: JPEG, PNG,"),
    "paper.pdf": (b"%PDF-1.7\n%\xff\n", "a PDF document, not an image; valid: JPEG, PNG,"),
}
"""What cannot be read, and the reason that every command gives."""
MODEL, WRONG = "model.safetensors", "wrong"
TRAIN = ("train", "--data", WRONG, "--out", "run", "--set", "model=vit_test", "--steps", 1)
FINETUNE = ("finetune", "--from", MODEL, "--data", WRONG, "--out", "run", "--steps", 1)
EVALUATE = ("evaluate", MODEL, "--data", WRONG, "--output", "page.html")
FEWSHOT = ("fewshot", MODEL, "--data", WRONG, "--shots", 1, "--draws", 1, "--plot", "plot.png")
CHECK = ("data", "check", WRONG, "--strict")
USES = (TRAIN, FINETUNE, EVALUATE, FEWSHOT)
Arguments = tuple[object, ...]
Prepare = Callable[[Path], object]


def no_folders(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.rename(folder / f"{'-'.join(path.parts[-3:])}")
    for split in ("train", "val"):
        shutil.rmtree(folder / split)


def no_classes(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.rename(path.parents[1] / f"{'-'.join(path.parts[-2:])}")
    for label in folder.glob("*/*/"):
        label.rmdir()


def class_of_val_alone(folder: Path) -> None:
    (folder / "val" / "red").rename(folder / "val" / "pink")


def class_in_another_case(folder: Path) -> None:
    (folder / "val" / "red").rename(folder / "val" / "Red")


def class_of_train_alone(folder: Path) -> None:
    shutil.rmtree(folder / "val" / "red")


def missing_files(folder: Path) -> None:
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in folder.rglob("*.png")]
    rows += ["gone/1.png,red", "gone/2.png,blue"]
    (folder / "train.csv").write_text("\n".join(["path,label", *rows]) + "\n")


def with_one(name: str) -> Prepare:
    return lambda folder: (folder / "train" / "red" / name).write_bytes(FILES[name][0])


def nothing_but(name: str, split: str) -> Prepare:
    def replace(folder: Path) -> None:
        for path in [*folder.glob(f"{split}/*/*.png")]:
            path.unlink()
            (path.parent / name).write_bytes(FILES[name][0])

    return replace


def labels_file(folder: Path) -> None:
    (folder / "labels.txt").write_text("cat\ndog\n")


NO_CLASSES = "holds files but no folders; valid: one folder of images for each class"
FOLDERS: dict[Prepare, tuple[str, str, tuple[Arguments, ...]]] = {
    no_folders: (f"{WRONG} {NO_CLASSES}", "1 folder without class folders", USES),
    no_classes: (f"{WRONG}/train {NO_CLASSES}", "1 folder without class folders", USES),
    class_of_val_alone: (
        f"{WRONG}/val holds the class 'pink', which is not trained; valid: blue, green, red",
        "1 class in val but not in train",
        USES,
    ),
    class_in_another_case: (
        f"{WRONG}/val holds the class 'Red', which is not trained; did you mean red?",
        "train/red = val/Red",
        USES,
    ),
    class_of_train_alone: (
        f"{WRONG}/val has no images of red: their accuracy could not be measured; "
        "valid: the same classes in both, or --set judge_all=false",
        "1 class of train without images in val",
        (TRAIN, FINETUNE),
    ),
}


def cases() -> Iterator[Any]:
    """What is done to a folder that is right, what is called, and what is told with which code."""

    def case(
        prepare: Prepare, arguments: Arguments, message: str, *words: str, code: int = 2
    ) -> Any:
        return pytest.param(
            prepare, arguments, message, code, id=" ".join([str(arguments[0]), *words])
        )

    for change, (message, finding, commands) in FOLDERS.items():
        for arguments in commands:
            yield case(change, arguments, message, change.__name__)
        yield case(change, CHECK, finding, change.__name__, code=1)
    message = (
        "train.csv, line 20: no such file: gone/1.png (2 of 20 are missing); "
        "valid: files, by paths that begin in "
    )
    for arguments in USES:
        yield case(missing_files, arguments, message, "missing_files")
    arguments = ("predict", MODEL, f"{WRONG}/val", "--labels", f"{WRONG}/labels.txt")
    message = (
        "labels.txt: 2 labels for a model of 3 classes; valid: 3, one a line or as a JSON list"
    )
    yield case(labels_file, (*arguments, "--output", "out.csv"), message, "labels")
    for name, (_, reason) in FILES.items():
        file = f"{WRONG}/train/red/{name}"
        told = f"{file}: {reason}"
        for arguments in (
            ("predict", MODEL, file, "--output", "out.csv", "--contact-sheet", "sheet.png"),
            ("features", MODEL, file, "--output", "out.npz"),
            ("similar", "right.npz", file, "--contact-sheet", "sheet.png"),
        ):
            yield case(with_one(name), arguments, told, name)
        yield case(with_one(name), ("predict", MODEL, WRONG), told, name, "in folder", code=3)
        looked_for = name != "paper.pdf"
        message = (
            reason
            if looked_for
            else "holds no image files (files in formats that are not read: 1 PDF;"
        )
        for split, uses in {"train": (TRAIN, FINETUNE, FEWSHOT), "val": (TRAIN, EVALUATE)}.items():
            for arguments in uses:
                yield case(nothing_but(name, split), arguments, message, split, "of", name)
        arguments = ("features", MODEL, WRONG, "--output", "out.npz")
        message = reason if looked_for else f"{WRONG}: no images; valid endings: .avif .bmp"
        yield case(nothing_but(name, "*"), arguments, message, "all of", name)
        finding = "(a PDF document" if name == "paper.jpg" else name
        yield case(nothing_but(name, "train"), CHECK, finding, "train of", name, code=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a folder that is right, and its features."""
    from vitlab.jobs.features import extract

    home = tmp_path_factory.mktemp("home")
    model, seed = saved_model(home / MODEL), 100
    for split in ("train", "val"):
        for label in LABELS:
            (home / WRONG / split / label).mkdir(parents=True)
            for number in range(EACH):
                seed += 1
                content = encoded(picture(seed), "PNG")
                (home / WRONG / split / label / f"{number}.png").write_bytes(content)
    extract(model, [home / WRONG], output=home / "right.npz")
    return home


@pytest.mark.parametrize(("prepare", "arguments", "message", "code"), list(cases()))
def test_wrong_input(
    command: Command,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prepare: Prepare,
    arguments: Arguments,
    message: str,
    code: int,
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    prepare(Path(WRONG))
    before = sorted(tmp_path.rglob("*"))
    outcome = command(*arguments)
    assert message in (outcome.mistake if code == 2 else outcome.out + outcome.err)
    assert outcome.code == code
    assert sorted(tmp_path.rglob("*")) == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
