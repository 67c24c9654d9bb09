"""Guides: answers that are valid commands, quoted messages that exist, prediction without torch."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

import vitlab
from reference.random_weights import randomise
from vitlab.cli.main import app, run
from vitlab.weights.resolve import bundled_folder

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \| (.+) \|$", re.M)
COMMAND = re.compile(r"`vitlab ([a-z][^`…]*)`")
WITHOUT_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "einops", "jaxtyping", "huggingface_hub"):
            raise ImportError(name)

sys.meta_path.insert(0, Block())
from vitlab.cli.main import main
sys.exit(main())
"""


def check_command(text: str) -> None:
    """Raise unless the arguments of a command are valid."""
    command: Any = get_command(app)
    words = shlex.split(text)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


def test_forty_demands_are_answered_by_commands() -> None:
    rows = ROW.findall((DOCS / "demands.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 41))
    for _, question, answer, more in rows:
        found = COMMAND.findall(answer)
        assert found or re.search(r"`(model\.|pip )|ot supported", answer), question
        assert "](" in more, question
        for text in found:
            check_command(text)


def strings_of(file: Path) -> list[str]:
    """Whole texts, and the fixed parts of texts that vary, in a module."""
    found = (node.value for node in ast.walk(ast.parse(file.read_text()))
             if isinstance(node, ast.Constant))  # fmt: skip
    return [value for value in found if isinstance(value, str)]


def test_quoted_messages_are_those_of_the_code() -> None:
    quoted = re.findall(r"^### (.+)$", (DOCS / "troubleshooting.md").read_text(), re.M)
    quoted.remove("The accuracy is low")  # a symptom without a message
    assert len(quoted) >= 15
    texts = [text for file in (ROOT / "src").rglob("*.py") for text in strings_of(file)]
    assert not [message for message in quoted if not any(message in text for text in texts)]


@pytest.mark.parametrize("model", ["cifar10", "file"])
def test_prediction_needs_no_torch(model: str, tmp_path: Path) -> None:
    image = tmp_path / "sky.png"
    Image.new("RGB", (40, 30), "skyblue").save(image)
    file = ROOT / "src" / "vitlab" / "bundled" / "vit_cifar.cifar10" / "model.onnx"
    chosen = file if model == "file" else model
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "predict", str(chosen), str(image), "--top", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sky.png" in done.stdout


SHORTER = (
    (r"--minutes \d+", "--steps 2"),
    (r"vit_ti16\.deit --download", "cifar10"),
    (r"--data cifar10\b", "--data sample"),
    (r"--image-size 384", "--image-size 48"),
    (r"--image-size 224x320", "--image-size 32x48"),
    (r"--freeze 6", "--freeze 2"),
    (r"\bMODEL\b", "cifar10"),
    (r"\bFILE\b", "21k.npz"),
    (r"vit_ti16\.deit(?= [a-z-])", "cifar10"),
    ("Egyptian cat", "cat"),
    (r"--only filters,positions", "--only filters"),
)
"""Smaller values, and names for the placeholders, so that each answer runs in seconds."""
NOT_RUN = {
    "explore": "serves until it is ended; tests/serve runs it",
    "benchmark": "measures for minutes; tests/cli/test_benchmark.py runs it",
    "experiment": "a minute each; tests/experiments runs them",
    "serve": "serves until it is ended; tests/serve runs it",
    "demo": "trains for a minute; tests/cli/test_demo.py runs it",
    "weights fetch": "needs the network; tests/weights runs it with a local server",
}
PAGES = (
    *("README.md", "docs/walkthrough.md", "docs/finetune.md", "docs/installation.md"),
    *("docs/explain.md", "docs/figures.md", "docs/learn/5-look-inside.md"),
    *("docs/learn/8-deploy-and-serve.md", "docs/learn/4-your-own-images.md"),
)
"""Pages whose blocks of commands are run line by line."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the answers speak of."""
    folder = tmp_path_factory.mktemp("desk")
    random = np.random.default_rng(0)
    places = [f"FOLDER/{split}/{label}/{number}.png" for split in ("train", "test")
              for label in ("cat", "dog") for number in range(8)]  # fmt: skip
    places += [f"pets/{split}/{label}/{number}.png" for split in ("train", "val")
               for label in ("cat", "dog") for number in range(8)]  # fmt: skip
    places += [
        "photo.jpg",
        "cat.jpg",
        "grace_hopper.jpg",
        *(f"photos/{number}.png" for number in range(12)),
    ]
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 36, 3), np.uint8)).save(folder / place)
    for kind, shape in (("scans", (36, 32, 5)), ("signals", (256,))):
        for label in ("a", "b"):
            (folder / kind / label).mkdir(parents=True)
            for number in range(10):
                array = random.integers(0, 256, shape, np.uint8)
                np.save(folder / kind / label / f"{number}.npy", array)
    rows = [f"photos/{number}.png,{number / 7:.3f}" for number in range(12)]
    (folder / "values.csv").write_text("\n".join(["path,value", *rows]))
    rows = [f'photos/{number}.png,"{"x;y" if number % 2 else "x"}"' for number in range(12)]
    (folder / "tags.csv").write_text("\n".join(["path,labels", *rows]))
    for name, head in (("B_16.npz", "linear"), ("21k.npz", "mlp")):
        model = vitlab.create_model("vit_test", head=head, gelu="tanh")
        vitlab.save_weights(model, folder / name, format="google")
    model = vitlab.create_model("vit_test")
    randomise(model)
    for name in ("weights", "model"):
        vitlab.save_weights(model, folder / f"{name}.safetensors")
    bundled = bundled_folder("cifar10")
    assert bundled is not None
    for name in ("runs/mine", "runs/pets"):
        shutil.copytree(bundled, folder / name)
    return folder


def shortened(text: str, number: str) -> list[str]:
    """Words of a command with smaller values; no words for one that is not run."""
    if any(text.startswith(name) for name in NOT_RUN):
        return []
    for pattern, shorter in SHORTER:
        text = re.sub(pattern, shorter, text)
    words = shlex.split(text, comments=True)
    if words[0] == "export":
        Path("model.onnx").unlink(missing_ok=True)
    if "--resume" in words:
        words[words.index("--out") + 1] = "runs/begun"
    elif words[0] in ("train", "finetune", "pretrain"):
        words[words.index("--out") + 1] = f"runs/{number}"
        words += [] if "--steps" in words else ["--steps", "2"]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 41))
def test_every_answer_runs(
    number: int, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    answer = ROW.findall((DOCS / "demands.md").read_text())[number - 1][2]
    for text in COMMAND.findall(answer):
        words = shortened(text, str(number))
        if "--resume" in words:
            begun = ["train", "--data", "digits", "--steps", "1", "--out", "runs/begun"]
            assert not run([*begun, "--set", "model=vit_test"])
        if words:
            assert not run(words), capsys.readouterr().err[-400:]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_commands_run(
    page: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    blocks = re.findall(r"^```(?:console)?\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    failed = {}
    for number, line in enumerate(lines):
        found = re.match(r"(?:\$ )?vitlab (.+)", line)
        words = (
            shortened(found[1].partition(" > ")[0], f"{Path(page).stem}-{number}") if found else []
        )
        if words and run(words):
            failed[line] = capsys.readouterr().err.strip()[-200:]
    assert not failed
