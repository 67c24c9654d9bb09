"""Contact sheets: what is drawn, what is cut, and that nothing in a caption stops them."""

import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from data.picture_files import encoded, picture, png_of
from vitlab.errors import FileError, InputError
from vitlab.images import contact_sheet
from vitlab.images.contact_sheet import (
    COLOURS,
    FONTS,
    GAP,
    MARGIN,
    PAD,
    SIDE,
    Tile,
    write_contact_sheet,
)

CARD = SIDE + 2 * PAD
BLUE = (10, 20, 200)


def tile(**changes: object) -> Tile:
    return Tile(**({"image": Image.new("RGB", (60, 60), BLUE), "caption": "a"} | changes))


def sheet_of(path: Path, tiles: object, **options: object) -> Image.Image:
    write_contact_sheet(path, tiles, **options)
    with Image.open(path) as image:
        image.load()
        return image


def blues(sheet: Image.Image) -> int:
    """Pixels that only the images of `tile` have."""
    colours = sheet.getcolors(1 << 24) or []
    return sum(count for count, colour in colours if colour == BLUE)


def test_images_stand_in_a_grid(tmp_path: Path) -> None:
    sheet = sheet_of(tmp_path / "a.png", [tile() for _ in range(5)], columns=3)
    assert (sheet.format, sheet.mode) == ("PNG", "RGB")
    assert sheet.width == 2 * MARGIN + 3 * CARD + 2 * GAP
    assert blues(sheet) == 5 * SIDE * SIDE
    centre = MARGIN + PAD + SIDE // 2
    step = CARD + GAP
    assert [sheet.getpixel((centre + i * step, centre)) for i in range(3)] == [BLUE] * 3
    assert sheet.getpixel((centre + 2 * step, sheet.height - centre)) != BLUE


def test_what_is_too_much_is_cut_and_said(tmp_path: Path) -> None:
    taken = []

    def tiles() -> Iterator[Tile]:
        for number in range(10):
            taken.append(number)
            yield tile(caption=str(number))

    cut = sheet_of(tmp_path / "cut.png", tiles(), limit=4, columns=2)
    assert len(taken) == 10
    whole = sheet_of(tmp_path / "whole.png", [tile()] * 4, columns=2)
    assert cut.height > whole.height
    assert blues(cut) == blues(whole)
    assert write_contact_sheet(tmp_path / "n.png", [tile()] * 4, limit=3) == 3


def test_marks_are_colours_and_signs(tmp_path: Path) -> None:
    found = {}
    for mark, colour in COLOURS.items():
        sheet = sheet_of(tmp_path / f"{mark}.png", [tile(mark=mark)])
        wanted = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
        found[mark] = next(n for n, c in sheet.getcolors(1 << 24) or [] if c == wanted)
    assert set(found) == {"good", "bad", "warn"}
    assert len(set(found.values())) == 3  # the signs leave out different parts of the disc


def test_proportions_are_kept(tmp_path: Path) -> None:
    wide = Image.new("RGB", (400, 100), BLUE)
    sheet = sheet_of(tmp_path / "a.png", [tile(image=wide)])
    assert blues(sheet) == pytest.approx(SIDE * SIDE / 4, rel=0.05)


def test_files_are_upright_and_broken_ones_are_empty_frames(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.new("RGB", (90, 30), BLUE)
    lying.save(tmp_path / "lying.png", exif=exif)
    sheet = sheet_of(tmp_path / "a.png", [tile(image=tmp_path / "lying.png")])
    centre = MARGIN + PAD + SIDE // 2
    assert sheet.getpixel((centre, MARGIN + PAD + 20)) == BLUE
    assert sheet.getpixel((MARGIN + PAD + 20, centre)) != BLUE
    (tmp_path / "cut.jpg").write_bytes(encoded(picture(0), "JPEG")[:-200])
    (tmp_path / "huge.png").write_bytes(png_of(30_000, 30_000))
    broken = [tmp_path / "cut.jpg", tmp_path / "huge.png", tmp_path / "gone.jpg"]
    shown = sheet_of(tmp_path / "b.png", [tile(image=path) for path in [*broken, lying]])
    assert 0 < blues(shown) < SIDE * SIDE


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "x" * 10_000,
        "猫 кошка γάτα 🐈 \u202eright to left",
        "\udcff\x00\x1b[31m\t",
        "one\ntwo\nthree\nfour\nfive",
        "\n",
    ],
    ids=["empty", "long", "unicode", "control", "lines", "newline"],
)
def test_no_caption_stops_it(caption: str, tmp_path: Path) -> None:
    tiles = [tile(caption=caption, group=caption)]
    sheet = sheet_of(tmp_path / "a.png", tiles, title=caption)
    assert sheet.width < 3 * CARD
    assert sheet.height < 3 * CARD


@pytest.mark.parametrize("fonts", [FONTS, ()])
@pytest.mark.parametrize("text", ["Bär", "目录", "a\u0308"])
def test_letters_are_drawn_or_escaped(
    text: str, fonts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact_sheet, "FONTS", fonts)
    shown = contact_sheet._clean(text)
    font = contact_sheet._font(12, shown)
    assert all(contact_sheet._has(font, letter) for letter in shown)
    assert len({bytes(font.getmask(letter)) for letter in shown}) == len(set(shown))
    if not fonts:
        assert shown == unicodedata.normalize("NFC", text).encode("unicode_escape").decode()
    sheet_of(tmp_path / "sheet.png", [tile(caption=text, group=text)], title=text)


def test_captions_stay_in_their_cards(tmp_path: Path) -> None:
    sheet = sheet_of(tmp_path / "a.png", [tile(caption="W" * 500), tile(caption="")], columns=2)
    # Between the two cards and left of the picture in the second there is nothing but paper.
    gap = sheet.crop((MARGIN + CARD + 2, 0, MARGIN + CARD + GAP - 2, sheet.height))
    assert len(gap.getcolors() or []) == 1


def test_groups_begin_a_row_under_their_heading(tmp_path: Path) -> None:
    plain = sheet_of(tmp_path / "a.png", [tile()] * 2, columns=2)
    grouped = sheet_of(tmp_path / "b.png", [tile(group="a"), tile(group="b")], columns=2)
    assert grouped.height > plain.height + CARD


def test_nothing_to_show_is_a_sheet_as_well(tmp_path: Path) -> None:
    assert blues(sheet_of(tmp_path / "a.png", [], title="none")) == 0


def test_mistakes_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"a\.jpg: a contact sheet is a PNG"):
        write_contact_sheet(tmp_path / "a.jpg", [tile()])
    with pytest.raises(FileError, match="there is no folder"):
        write_contact_sheet(tmp_path / "no" / "a.png", [tile()])
    with pytest.raises(InputError, match="columns 0 and limit 120 must be at least 1"):
        write_contact_sheet(tmp_path / "a.png", [tile()], columns=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_former_sheet(tmp_path: Path) -> None:
    def tiles() -> Iterator[Tile]:
        yield tile()
        raise KeyError("broken off")

    (tmp_path / "a.png").write_bytes(b"former")
    with pytest.raises(KeyError):
        write_contact_sheet(tmp_path / "a.png", tiles())
    assert (tmp_path / "a.png").read_bytes() == b"former"
    assert len(list(tmp_path.iterdir())) == 1


def test_it_loads_neither_torch_nor_matplotlib() -> None:
    source = str(Path(__file__).resolve().parents[1] / "src")
    code = (
        f"import sys; sys.path.insert(0, {source!r}); import vitlab.images.contact_sheet; "
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
