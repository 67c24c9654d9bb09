"""Blocks of commands on every page: each line runs with small files, or has a reason why not."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

import vitlab
from command import ROOT
from reference.random_weights import randomise
from vitlab.cli.main import app, run
from vitlab.weights.resolve import bundled_folder
from weights.whole_models import WHOLE

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
PAGES = [page for page in PAGES if "zh" not in page.parts]  # those have the code of their source
BLOCK = re.compile(r"^(?:<!-- not run: (.+) -->\n)?```([^\n]*)\n(.*?)^```$", re.M | re.S)
"""The reason why a block is not run, its language and its lines."""
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \| (.+) \|$", re.M)
COMMAND = re.compile(r"`vitlab ([a-z][^`…]*)`")

NOT_RUN = {
    r"(?:\S+ -m venv|pip|pipx|uv) ": "installs packages; the workflows install from pyproject.toml",
    r"python benchmarks/": "measures for minutes; tests/test_benchmarks.py runs the scripts",
    r"curl ": "needs a server that runs; tests/serve/test_serve.py makes such requests",
    r"vitlab (?:serve|explore)(?!.* --static)": "serves until it ends; tests/serve/test_serve.py",
    r"vitlab benchmark": "measures for minutes; tests/cli/test_benchmark.py runs it",
    r"vitlab experiment": "minutes for each arm; tests/experiments/test_run.py runs small ones",
    r"vitlab demo": "trains for a minute; tests/cli/test_demo.py runs it",
    r"vitlab (?:weights|data) fetch": "needs the network; tests/weights/test_fetch.py has a server",
    r"vitlab .*s3://": "needs an object store; tests/data/test_stores.py has one",
}
"""Beginnings of lines that are not run, and why."""

SHORTER = (
    (r"--minutes \d+|--epochs [\d.]+|--steps \d+", "--steps 2"),
    (r" --download\b", ""),
    (r"--data (?:cifar100?|photos/?)(?= |$)", "--data FOLDER"),
    (r"--data pets/?(?= |$)", "--data FOLDER"),
    (r"\ba cifar10 --split", "a sample --split"),
    (r"data pack photos", "data pack FOLDER"),
    (r"'shards/\{00000\.\.00127\}\.tar'", "shards"),
    (r"vit_(?:ti16|b16)\.(?:deit|augreg\w*)(?= |$)", "cifar10"),
    (r"--batch-size \d+|--workers \w+|--set workers=\d+", ""),
    (r"--image-size 224x320", "--image-size 32x48"),
    (r"--image-size \d+", "--image-size 48"),
    (r"--freeze 6", "--freeze 2"),
    (r"\bMODEL\b", "cifar10"),
    (r"\bFILE\b", "21k.npz"),
    ("Egyptian cat", "cat"),
    (r"--shots [\d,]+", "--shots 1 --draws 2"),
    (r"--images \d+", "--images 4"),
    (r"--quantize int8 (.*)--data FOLDER", r"--quantize int8 \1--data FOLDER --tolerance 5"),
    (r"runs/flowers", "runs/pets"),
    (r"--layer 2 --head 1 --token 3,6", "--layer 1 --head 1 --token 1,2"),
)
"""Smaller values, and names for the placeholders, so that each command runs in seconds."""


def lines_of(page: Path) -> Iterator[tuple[str | None, str]]:
    """Lines of the blocks of commands without their comments, each with the reason of its block."""
    for reason, language, block in BLOCK.findall(page.read_text()):
        lines = block.replace("\\\n", " ").splitlines()
        for line in lines if language in ("", "console", "bash") else ():
            bare = re.sub(r"(?:^|\s+)#\s.*$", "", line).removeprefix("$ ").strip()
            if bare:
                yield reason or None, re.sub(r"\s+", " ", bare)


def reason_of(line: str) -> str | None:
    """Why a line is not run."""
    return next((why for start, why in NOT_RUN.items() if re.match(start, line)), None)


ALL = [(page, reason, line) for page in PAGES for reason, line in lines_of(page)]


def test_every_line_runs_or_has_a_reason() -> None:
    assert len(ALL) > 100
    unknown = [
        f"{page.relative_to(ROOT)}: {line}"
        for page, reason, line in ALL
        if not (reason or reason_of(line) or line.startswith("vitlab "))
    ]
    assert not unknown, "mark the block `<!-- not run: REASON -->`, or as text if it is an output"
    idle = [start for start in NOT_RUN if not any(re.match(start, line) for *_, line in ALL)]
    assert not idle


def test_reasons_are_given_and_name_files_that_exist() -> None:
    reasons = {reason for _, reason, _ in ALL if reason} | {*NOT_RUN.values()}
    assert all(len(reason.split()) >= 3 for reason in reasons)
    named = [path for reason in reasons for path in re.findall(r"tests/[\w/]+\.py", reason)]
    assert len(named) > 8
    assert not [path for path in named if not (ROOT / path).exists()]


def test_forty_demands_are_answered_by_commands() -> None:
    rows = ROW.findall((DOCS / "demands.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 41))
    for _, question, answer, more in rows:
        found = COMMAND.findall(answer)
        assert found or re.search(r"`(model\.|pip )|ot supported", answer), question
        assert "](" in more, question
        for text in found:
            check_command(text)


def check_command(text: str) -> None:
    """Raise unless the arguments of a command are valid."""
    command: Any = get_command(app)
    words = shlex.split(text)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


def draw(place: Path) -> None:
    """Write a small image of noise, or an array where the name says so."""
    place.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(list(str(place).encode()))
    if place.suffix == ".npy":
        shape = (256,) if "signals" in place.parts else (36, 32, 5)
        np.save(place, random.integers(0, 256, shape, np.uint8))
    else:
        Image.fromarray(random.integers(0, 256, (40, 36, 3), np.uint8)).save(place)


FILES = (
    *("photo.jpg", "cat.jpg", "grace_hopper.jpg", "a.jpg", "scans/a.png"),
    *(f"photos/{number}.png" for number in range(12)),
    *(f"holiday/{number}.png" for number in range(3)),
    *(f"more/{number}.jpg" for number in range(2)),
    *(f"{folder}/{split}/{label}/{number}.png" for folder in ("FOLDER", "pets", "labelled")
      for split in ("train", "val") for label in ("cat", "dog") for number in range(8)),
    *(f"{folder}/{label}/{number}.png" for folder in ("never-seen", "other_photos")
      for label in ("cat", "dog") for number in range(3)),
    *(f"{folder}/{label}/{number}.npy" for folder in ("scans-5", "fields", "signals")
      for label in ("fast", "slow") for number in range(10)),
)  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages name."""
    folder = tmp_path_factory.mktemp("desk")
    for name in FILES:
        draw(folder / name)
    rows = [f"photos/{number}.png,{number / 7:.3f}" for number in range(12)]
    (folder / "values.csv").write_text("\n".join(["path,value", *rows]))
    rows = [f'photos/{number}.png,"{"x;y" if number % 2 else "x"}"' for number in range(12)]
    for name in ("tags.csv", "labels.csv"):
        (folder / name).write_text("\n".join(["path,labels", *rows]))
    for name, head in (("B_16.npz", "linear"), ("21k.npz", "mlp")):
        model = vitlab.create_model("vit_test", head=head, gelu="tanh")
        vitlab.save_weights(model, folder / name, format="google")
    model = vitlab.create_model("vit_test")
    randomise(model)
    for name in ("weights", "model"):
        vitlab.save_weights(model, folder / f"{name}.safetensors")
    prepared = vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    save = {"preprocessing": prepared, "labels": ["x", "y"], "task": "multi-label"}
    vitlab.save_bundle(folder / "runs/tags", vitlab.create_model("vit_test", classes=2), **save)
    for name, make in WHOLE.items():
        make(folder / name)
    (folder / "labels.txt").write_text("cat\ndog\n")
    bundled = bundled_folder("cifar10")
    assert bundled is not None
    for name in ("runs/mine", "runs/pets", "runs/photos"):
        shutil.copytree(bundled, folder / name)
    small = ["--set", "model=vit_test", "--set", "model.depth=7", "--steps", "2"]
    command = ["train", "--data", "sample", "--out", "runs/a", *small]
    subprocess.run(
        [sys.executable, "-m", "vitlab", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "VITLAB_ONNX": "0"},
        check=True,
    )
    return folder


def shortened(text: str, number: str) -> list[str]:
    """Words of a command with smaller values and a new folder for its run."""
    for pattern, shorter in SHORTER:
        text = re.sub(pattern, shorter, text)
    words = shlex.split(text, comments=True)
    if words[0] in ("train", "finetune", "pretrain") and "--resume" not in words:
        words[words.index("--out") + 1] = f"runs/{number}"
        words += [] if "--steps" in words else ["--steps", "2"]
    if "--output" in words:
        place = Path(words[words.index("--output") + 1])
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    return words


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(1, 41))
def test_every_answer_runs(
    number: int, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    answer = ROW.findall((DOCS / "demands.md").read_text())[number - 1][2]
    for text in COMMAND.findall(answer):
        if reason_of(f"vitlab {text}") is None:
            words = shortened(text.replace("--data scans", "--data scans-5"), f"answer-{number}")
            assert not run(words), capsys.readouterr().err[-400:]


RUN = [page for page in PAGES if any(not (why or reason_of(line)) for why, line in lines_of(page))]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_blocks_of_commands_run(
    page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("VITLAB_ONNX", "0")
    failed = {}
    for number, (reason, line) in enumerate(lines_of(page)):
        if reason is None and reason_of(line) is None:
            text = line.removeprefix("vitlab ").partition(" > ")[0]
            if run(shortened(text, f"{page.stem}-{number}")):
                failed[line] = capsys.readouterr().err.strip()[-200:]
    assert not failed
