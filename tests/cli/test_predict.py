"""`vitlab predict`: one image, many, from anywhere; mistakes are one line and leave nothing."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command import Command
from data.picture_files import encoded, picture, png_of, write_broken
from jobs.classifiers import LABELS, colours, saved_model
from vitlab import load
from vitlab.cli.output import print_bars


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return colours(tmp_path / "photos", 11)


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let standard input hold this."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def summary(out: str) -> str:
    """The last line, without the speed, which depends on the machine."""
    return re.sub(r" \([\d,]+ a second\)", "", out.splitlines()[-1])


def records(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_image_is_a_table(command: Command, weights: Path, folder: Path) -> None:
    path = folder / "00.png"
    expected = load(weights).predict(path)[0]
    outcome = command("predict", weights, path)
    assert (outcome.code, outcome.err) == (0, "")
    rows = outcome.out.splitlines()[2:]
    assert [row.split()[1] for row in rows] == [label for label, _ in expected.top]
    assert rows[0].split() == [str(path), expected.label, f"{expected.probability:.1%}"]


def test_one_image_is_opened_once(
    command: Command, weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_image, opened = Image.open, list[object]()

    def counted(file: Any, *args: Any, **options: Any) -> Image.Image:
        opened.append(file)
        return open_image(file, *args, **options)

    monkeypatch.setattr(Image, "open", counted)
    assert command("predict", weights, next(folder.iterdir())).code == 0
    assert len(opened) == 1


def test_several_images_are_a_line_each(command: Command, weights: Path, folder: Path) -> None:
    outcome = command("predict", weights, folder)
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split("\t") for line in outcome.out.splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in sorted(folder.glob("*.png"))]
    assert {len(line) for line in lines} == {2}
    again = command("predict", weights, folder, "--top", 2).out.splitlines()
    assert [line.split("\t")[:2] for line in again] == lines
    assert {len(line.split("\t")) for line in again} == {3}


def test_json_is_a_list_of_records(command: Command, weights: Path, folder: Path) -> None:
    found = json.loads(command("predict", weights, folder, "--json").out)
    assert [list(record) for record in found] == [
        ["path", "label", "probability", "top", "error"]
    ] * 11
    (one,) = json.loads(command("predict", weights, folder / "00.png", "--json").out)
    assert one["label"] == found[0]["label"]
    # Eleven images are computed together, one alone: float32 sums in another order.
    assert one["probability"] == pytest.approx(found[0]["probability"], rel=1e-5)
    assert one["top"][0] == [one["label"], one["probability"]]


def test_files_folders_patterns_and_lists_name_the_same_images(
    command: Command, weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = command("predict", weights, folder).out
    assert command("predict", weights, folder / "*.png").out == expected
    assert command("predict", weights, *sorted(folder.glob("*.png"))).out == expected
    piped(monkeypatch, "\n".join(map(str, sorted(folder.glob("*.png")))).encode() + b"\n\n")
    assert command("predict", weights, "-").out == expected


def test_an_image_can_come_through_a_pipe(
    command: Command, weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = json.loads(command("predict", weights, folder / "03.png", "--json").out)
    piped(monkeypatch, (folder / "03.png").read_bytes())
    given = json.loads(command("predict", weights, "-", "--json").out)
    assert given == [named[0] | {"path": "-"}]


def test_paths_may_begin_like_pictures(
    command: Command, weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "00.png").rename(folder / "BMW.png")
    piped(monkeypatch, b"BMW.png\n01.png\n")
    lines = command("predict", weights, "-").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["BMW.png", "01.png"]
    for format in ("PNG", "WEBP", "BMP"):
        piped(monkeypatch, encoded(picture(0), format))
        assert json.loads(command("predict", weights, "-", "--json").out)[0]["path"] == "-"


def test_output_is_announced(command: Command, weights: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    outcome = command("predict", weights, folder, "--output", output)
    assert (outcome.code, summary(outcome.out)) == (0, f"{output}: 11 images")
    assert len(records(output.read_text())) == 11
    again = command("predict", weights, folder, "--output", output)
    assert (again.code, again.out) == (0, f"{output}: 11 images, 11 of them before\n")
    facts = json.loads(command("predict", weights, folder, "--output", output, "--json").out)
    assert (facts["images"], facts["failed"], facts["done_before"]) == (11, 0, 11)


def test_broken_files_are_listed_and_skipped(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    broken = {
        path: reason
        for path, reason in write_broken(folder).items()
        if path.exists() and not path.is_dir()
    }
    (folder / "paper.pdf").write_bytes(b"%PDF-1.7\n")
    (folder / "notes.txt").write_text("not tried")
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    frames = [picture(1), picture(2)]
    (folder / "film.gif").write_bytes(
        encoded(picture(0), "GIF", save_all=True, append_images=frames)
    )
    broken |= {
        folder / "paper.pdf": "a PDF document",
        folder / "dot.png": "1 x 1 pixels",
        folder / "film.gif": "animated",
    }
    output = tmp_path / "out.jsonl"
    outcome = command("predict", weights, folder, "--output", output)
    assert outcome.code == 3
    found = {record["path"]: record for record in records(output.read_text())}
    assert len(found) == 11 + len(broken)
    for path, reason in broken.items():
        record = found[str(path)]
        assert reason in str(record["error"])
        assert (record["label"], record["probability"], record["top"]) == (None, None, [])
        assert f"error: {path}: {record['error']}\n" in outcome.err
    assert outcome.err.count("\n") == len(broken) + 1
    assert outcome.err.endswith("not read: 1 PDF; convert them to JPEG or PNG\n")
    told = f"{output}: {len(found)} images, {len(broken)} cannot be read"
    assert summary(outcome.out) == told
    assert command("predict", weights, folder, "--output", output).code == 3


SINGLE = {
    "film.gif": (
        encoded(picture(0), "GIF", save_all=True, append_images=[picture(1)]),
        "film.gif: animated (GIF); valid: one image",
    ),
    "film.webp": (
        encoded(picture(0), "WEBP", save_all=True, append_images=[picture(1)]),
        "film.webp: animated (WEBP)",
    ),
    "pages.tif": (
        encoded(picture(0), "TIFF", save_all=True, append_images=[picture(1)]),
        "pages.tif: several pages (TIFF)",
    ),
    "paper.pdf": (b"%PDF-1.7\n%\xff\n", "paper.pdf: a PDF document, not an image"),
    "dot.png": (
        encoded(picture(0, 1, 1), "PNG"),
        "dot.png: 1 x 1 pixels; valid: at least 2 in all",
    ),
    "huge.png": (png_of(30_000, 30_000), "huge.png: 900,000,000 pixels; valid: at most 89,478,485"),
    "large.png": (
        png_of(10_000, 9_000),
        "large.png: 9000 x 10000 pixels; valid: at most 89,478,485",
    ),
    "empty.jpg": (b"", "empty.jpg: an empty file"),
    "text.jpg": (b"hello", "text.jpg: not an image of a known format"),
    "cut.jpg": (encoded(picture(0), "JPEG")[:-100], "cut.jpg: image file is truncated"),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_image_that_cannot_be_read_is_one_line(
    command: Command,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    content, message = SINGLE[name]
    (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    options = ("--output", tmp_path / "out.csv", "--contact-sheet", tmp_path / "sheet.png")
    assert message in command("predict", weights, tmp_path / name, *options).mistake
    if content.startswith((b"GIF", b"%PDF", b"\x89PNG")):
        piped(monkeypatch, content)
        told = command("predict", weights, "-").mistake
        assert told.startswith("standard input: " + message.removeprefix(f"{name}: "))
    assert sorted(tmp_path.iterdir()) == before


def test_the_pixel_limit_can_be_raised_and_lowered(
    command: Command, weights: Path, folder: Path
) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    path = folder / "00.png"
    pixels = 37 * 41
    assert command("predict", weights, path, "--max-pixels", pixels).code == 0
    mistake = command("predict", weights, path, "--max-pixels", pixels - 1).mistake
    assert f"41 x 37 pixels; valid: at most {pixels - 1:,}" in mistake
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.jpg"], "gone.jpg: no such file or folder"),
        (["*.tga"], "*.tga matches no file"),
        (["none"], "none holds no image files; valid endings: .avif .bmp"),
        (["photos", "gone.jpg"], "gone.jpg: no such file or folder"),
        (["photos", "none", "--output", "out.csv"], "none holds no image files"),
        (["dead.jpg"], "dead.jpg: No such file or directory"),
        (["-", "-"], "- is standard input, which can be read once"),
        ([], "Missing argument"),
        (["photos", "--top", "0"], "--top"),
        (["photos", "--output", "out.txt"], "out.txt: unknown ending '.txt'; valid: .csv"),
        (["photos", "--output", "gone/out.csv"], "gone/out.csv: there is no folder"),
        (["photos", "--contact-sheet", "a.jpg"], "a.jpg: a contact sheet is a PNG"),
        (["photos", "--labels", "gone.txt"], "gone.txt: no such file"),
        (["photos", "--labels", "two.txt"], "two.txt: 2 labels for a model of 3 classes"),
        (["photos", "--labels", "hole.txt"], "hole.txt: label 2 is empty"),
    ],
)
def test_wrong_input_is_one_line(
    command: Command,
    weights: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "none").mkdir()
    (folder.parent / "dead.jpg").symlink_to("gone.jpg")
    (folder.parent / "two.txt").write_text("a\nb\n")
    (folder.parent / "hole.txt").write_text("a\n\nc\n")
    before = sorted(folder.parent.iterdir())
    assert message in command("predict", weights, *arguments).mistake
    assert sorted(folder.parent.iterdir()) == before


def test_an_empty_standard_input_is_one_line(
    command: Command, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"", b"\n\n"):
        piped(monkeypatch, content)
        assert "standard input is empty" in command("predict", weights, "-").mistake


def test_labels_can_be_given(command: Command, weights: Path, folder: Path, tmp_path: Path) -> None:
    names = {old: f"{old} thing" for old in LABELS}
    (tmp_path / "names.txt").write_text("\n".join(names.values()) + "\n")
    plain = json.loads(command("predict", weights, folder, "--json").out)
    options = ("--labels", tmp_path / "names.txt", "--json")
    named = json.loads(command("predict", weights, folder, *options).out)
    assert [record["label"] for record in named] == [names[record["label"]] for record in plain]


def test_a_contact_sheet_is_drawn(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    (folder / "broken.png").write_bytes(b"nothing")
    sheet = tmp_path / "sheet.png"
    outcome = command("predict", weights, folder, "--contact-sheet", sheet)
    assert outcome.code == 3
    assert summary(outcome.out) == f"{sheet}: 12 images, 1 cannot be read"
    with Image.open(sheet) as image:
        assert image.width > 1000
        assert np.asarray(image).std() > 10
        drawn = np.asarray(image)
    # Drawn from the file of predictions, when that is there, the sheet is the same.
    output = tmp_path / "out.csv"
    assert command("predict", weights, folder, "--output", output).code == 3
    options = ("--output", output, "--contact-sheet", tmp_path / "again.png")
    assert command("predict", weights, folder, *options).code == 3
    with Image.open(tmp_path / "again.png") as image:
        np.testing.assert_array_equal(np.asarray(image), drawn)


def test_an_image_through_a_pipe_has_no_sheet(
    command: Command,
    weights: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piped(monkeypatch, (folder / "00.png").read_bytes())
    sheet = tmp_path / "sheet.png"
    assert "shows files" in command("predict", weights, "-", "--contact-sheet", sheet).mistake


def test_bars_have_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    top = [("Egyptian cat", 0.5), ("tabby", 0.25), ("a" * 200, 0.0)]
    print_bars("cat.jpg", top, Console(width=60, force_terminal=False))
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "cat.jpg"
    lengths = [line.count("█") for line in lines]
    assert lengths[0] == 2 * lengths[1] > lengths[2] == 0
    assert [line.split()[-1] for line in lines] == ["50.0%", "25.0%", "0.0%"]
    assert max(map(len, lines)) <= 60


def test_a_threshold_says_which_labels_are_present(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    model = saved_model(tmp_path / "labels.safetensors", task="multi-label")
    path = folder / "00.png"
    likely = load(model).predict(path, threshold=0.0)[0].top
    least = (likely[-2][1] + likely[-1][1]) / 2
    everything = json.loads(command("predict", model, path, "--threshold", 0, "--json").out)
    assert everything[0]["top"] == [list(told) for told in likely]
    fewer = command("predict", model, folder, "--threshold", least).out.splitlines()
    assert fewer[0].split("\t")[1:] == [f"{label} {value:.1%}" for label, value in likely[:-1]]
    asked = ("predict", weights, path, "--threshold", 0.3)
    assert "threshold 0.3 is for multi-label models" in command(*asked).mistake
    assert "--threshold" in command("predict", model, path, "--threshold", 2).mistake
