"""Check a folder of images before training on it: the embedded sample, with flaws planted."""

import shutil
from pathlib import Path

from PIL import Image

from vitlab.data.check.check import check_folder, write_check_sheet
from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet

ROOT = Path("animals")
CLASSES = ("bird", "cat", "deer", "dog", "frog")


def write_split(name: str, images: ArraySet, labels: tuple[str, ...], count: int) -> None:
    """`count` images of each class as PNG files."""
    for label in CLASSES:
        folder = ROOT / name / label
        folder.mkdir(parents=True)
        chosen = (images.labels == labels.index(label)).nonzero()[:count, 0]
        for number, index in enumerate(chosen.tolist()):
            pixels = images.images[index].permute(1, 2, 0).contiguous().numpy()
            Image.fromarray(pixels).save(folder / f"{number:02}.png")


def plant_flaws() -> None:
    """What real folders come with."""
    train, val = ROOT / "train", ROOT / "val"
    for number in range(3):  # the same pictures on both sides
        shutil.copy(train / "cat" / f"{number:02}.png", val / "cat" / f"again {number}.png")
    with Image.open(train / "dog" / "00.png") as image:
        image.save(val / "dog" / "recompressed.jpg", quality=90)
    shutil.copy(train / "dog" / "01.png", train / "cat" / "which.png")  # a dog among the cats
    grey, icon = train / "frog" / "00.png", train / "frog" / "01.png"
    Image.open(grey).convert("L").save(grey)
    Image.open(icon).resize((6, 6)).save(icon)
    cut = train / "deer" / "05.png"
    cut.write_bytes(cut.read_bytes()[:900])
    (train / "deer" / "page.jpg").write_text("<!doctype html><title>404 Not Found</title>")
    (train / "bird" / "notes.txt").write_text("ask Anna about the swans")


source = open_data("sample")
if ROOT.exists():
    shutil.rmtree(ROOT)
write_split("train", source.open_train(), source.labels, 20)
assert source.open_test is not None
write_split("val", source.open_test(), source.labels, 5)
plant_flaws()

check = check_folder(ROOT)
for finding in check.findings:
    print("!" if finding.serious else " ", finding.line)
write_check_sheet(Path("animals.png"), check)
assert check.serious
