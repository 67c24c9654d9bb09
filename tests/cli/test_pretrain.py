"""`vitlab pretrain`: what it prints, what follows, and what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from command import Command
from experiments.tiny import registered

SMALL = (
    *("--set", "model=vit_test", "--set", "model.patch_size=4", "--set", "model.width=24"),
    *("--set", "evaluations=1", "--batch-size", "10", "--steps", "2"),
)


@pytest.fixture
def data() -> Iterator[str]:
    with registered() as name:
        yield name


def test_from_images_to_an_encoder_to_a_classifier(
    command: Command, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_ONNX", "0")
    run, tuned = tmp_path / "p", tmp_path / "t"
    made = command(
        *("pretrain", "--data", data, "--out", run, *SMALL),
        *("--mask", 0.6, "--decoder-width", 16, "--decoder-depth", 1),
        *("--set", "mae.decoder_heads=2"),
    )
    assert made.code == 0, made.err
    assert f"next:   vitlab finetune --from {run} --data FOLDER --out RUN" in made.out
    assert "R2" in made.out
    plan = json.loads((run / "config.json").read_text())["train"]
    assert plan["mae"] == {
        "mask": 0.6, "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2
    }  # fmt: skip
    assert "none: it returns features" in command("info", run).out
    said = command(
        "finetune", "--from", run, "--data", data, "--out", tuned, "--steps", 1, "--json"
    )
    assert said.code == 0, said.err
    assert 0 <= json.loads(said.out)["test_accuracy"] <= 1
    Image.new("RGB", (16, 16)).save(tmp_path / "x.png")
    assert "no head" in command("predict", run, tmp_path / "x.png").mistake


def test_masked_patches_as_json(command: Command, data: str, tmp_path: Path) -> None:
    made = command(
        *("pretrain", "--objective", "masked-patch", "--data", data, "--out", tmp_path / "p"),
        *(*SMALL, "--mask", 0.4, "--json"),
    )
    assert made.code == 0, made.err
    found = json.loads(made.out)
    assert {"validation_loss", "validation_colours_right", "pflops", "bundle"} <= set(found)
    stored = json.loads((tmp_path / "p" / "config.json").read_text())
    assert stored["train"]["masked_patch"]["mask"] == 0.4
    resume = ("pretrain", "--out", tmp_path / "p", "--resume")
    assert "keeps mae.mask as it was begun" in command(*resume, "--mask", 0.5).mistake
    assert "a run of recipe masked-patch, not mae" in command(*resume, "--objective", "mae").mistake
    assert command(*resume, "--objective", "masked-patch").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "mea"], "unknown objective 'mea'; did you mean mae"),
        (["--mask", "1.5"], "mask 1.5 is not a share between 0 and 1"),
        (["--set", "model=vit_cifar"], "mae: with stem 'conv'"),
        (["--set", "model=resnet18_cifar"], "mae: a ResNet has no patches"),
        (["--set", "model.position=rope"], "mae: position 'rope' at 'stem' needs the whole grid"),
        (["--decoder-width", "7"], "decoder_width 7 does not split"),
        (["--objective", "masked-patch", "--decoder-depth", "1"], "masked-patch has no decoder"),
        (["--set", "mae.msak=0.5"], "unknown key 'mae.msak'"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, words: list[str], message: str, data: str, tmp_path: Path
) -> None:
    out = tmp_path / "p"
    assert message in command("pretrain", "--data", data, "--out", out, *words).mistake
    assert not out.exists()


def test_no_data_and_nothing_to_resume(command: Command, tmp_path: Path) -> None:
    assert "no data; pass --data" in command("pretrain", "--out", tmp_path / "p").mistake
    assert "no run to resume" in command("pretrain", "--resume", "--out", tmp_path / "p").mistake
