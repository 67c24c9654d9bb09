"""Checkpoints and the files beside them, damaged, edited or lost between two parts of a run."""

import json
import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import CHANGES, metrics_of, same, train_until
from vitlab.errors import ConfigError, WeightsError
from vitlab.jobs import train as job
from vitlab.jobs.plan import working_in
from vitlab.jobs.train import train
from vitlab.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    checkpoints,
    prune_checkpoints,
    read_checkpoint,
)

SETTINGS = CHANGES | {"budget": 12.0, "evaluations": 2, "checkpoint_every": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    return train(
        data="sample", out=tmp_path_factory.mktemp("runs") / "whole", changes=SETTINGS
    ).folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with checkpoints of the steps 4 and 8, stopped before step 10."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    train_until(9, data="sample", out=folder, changes=SETTINGS)
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be spoiled."""
    return shutil.copytree(stopped, tmp_path / "run")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def renumber(path: Path) -> None:
    """Another step in the header, as a flipped bit would leave it."""
    text = path.read_bytes()
    assert b'\\"step\\": 8' in text
    path.write_bytes(text.replace(b'\\"step\\": 8', b'\\"step\\": 9', 1))


def rename_tensor(path: Path) -> None:
    """A tensor of the optimizer under another name."""
    path.write_bytes(path.read_bytes().replace(b'"optimizer/0/', b'"optimizer/8/', 1))


def retype(path: Path) -> None:
    """The same bytes as integers."""
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"', 1))


def behead(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, renumber, rename_tensor, retype, behead, empty])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    run: Path,
    whole: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    latest = checkpoint_path(run / "checkpoints", 8)
    damage(latest)
    train(out=run, resume=True)
    assert same(run, whole)
    assert f"{latest}: " in caplog.text
    assert "goes on from step-00000004.safetensors" in caplog.text
    assert latest.with_name(f"{latest.name}.damaged").exists()


def test_every_flipped_bit_is_noticed(run: Path) -> None:
    latest = checkpoint_path(run / "checkpoints", 8)
    content = latest.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    draw = random.Random(0)
    positions = [
        *range(80),
        *draw.sample(range(header), 400),
        *draw.sample(range(len(content)), 40),
    ]
    for position in positions:
        changed = bytearray(content)
        changed[position] ^= 1 << draw.randrange(8)
        latest.write_bytes(changed)
        with pytest.raises(WeightsError, match=rf"{latest.name}: "):
            read_checkpoint(latest)
    latest.write_bytes(content)
    assert read_checkpoint(latest).numbers["step"] == 8


def older(path: Path, **changed: object) -> None:
    """Rewrite a checkpoint as older versions did: with a checksum of only the tensors."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    inner = json.loads(header["__metadata__"]["vitlab-training"])
    inner |= {"checksum": zlib.crc32(body)} | changed
    header["__metadata__"] = {"vitlab-training": json.dumps(inner)}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_a_checkpoint_of_an_older_version_is_read(run: Path, whole: Path) -> None:
    older(checkpoint_path(run / "checkpoints", 8))
    train(out=run, resume=True)
    assert same(run, whole)


@pytest.mark.parametrize("changed", [{"checksum": 1}, {"numbers": {"step": 8}}, {"metrics": 3}])
def test_a_damaged_checkpoint_of_an_older_version_gives_way(
    run: Path, changed: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    older(checkpoint_path(run / "checkpoints", 8), **changed)
    train(out=run, resume=True)
    assert "goes on from step-00000004.safetensors" in caplog.text


def test_nothing_but_damaged_checkpoints_is_an_error(run: Path) -> None:
    for path in checkpoints(run / "checkpoints"):
        cut(path)
    before = sorted((run / "checkpoints").iterdir())
    with pytest.raises(WeightsError, match=r"step-00000008.*no other checkpoint can be read"):
        train(out=run, resume=True)
    assert sorted((run / "checkpoints").iterdir()) == before


@pytest.mark.parametrize("exchanged", [False, True])
def test_without_the_best_the_last_weights_are_kept(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, exchanged: bool
) -> None:
    """An empty file, and the complete checkpoint of another step."""
    best = run / "checkpoints" / "best.safetensors"
    best.write_bytes(b"")
    if exchanged:
        shutil.copy(max(best.parent.glob("step-*.safetensors")), best)

    def end(config: Any, state: Any, loader: Any, **rest: Any) -> None:
        state.step, state.best_step, state.best = 12, 6, 0.5

    monkeypatch.setattr(job, "fit", end)
    train(out=run, resume=True)
    assert "the last weights take the place of the best" in caplog.text
    assert (run / "report.html").exists()


@pytest.mark.parametrize("content", [None, b"", b'{"step": 1, "val', b"\0" * 5000])
def test_metrics_come_back_from_the_checkpoint(
    run: Path, whole: Path, content: bytes | None
) -> None:
    if content is None:
        (run / "metrics.jsonl").unlink()
    else:
        (run / "metrics.jsonl").write_bytes(content)
    train(out=run, resume=True)
    assert metrics_of(run) == metrics_of(whole)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch_size", 16, "batch_size was 32 and is 16"),
        ("optimizer", {"name": "adamw"}, "optimizer.name was 'muon' and is 'adamw'"),
        ("seed", 1, "seed was 0 and is 1"),
        ("changes", {"width": 64}, "changes.drop_path was 0.1 and is None"),
    ],
)
def test_an_edited_plan_is_refused(run: Path, key: str, value: object, message: str) -> None:
    plan = json.loads((run / "config.json").read_text())
    known = plan["train"][key]
    plan["train"][key] = known | value if isinstance(value, dict) and key != "changes" else value
    (run / "config.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=f"config.json was changed since .*{message}"):
        train(out=run, resume=True)


def test_an_edited_rate_of_the_model_is_refused(run: Path) -> None:
    plan = json.loads((run / "config.json").read_text())
    plan["model"]["dropout"] = 0.5
    (run / "config.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=r"plan\.model\.dropout was 0\.1 and is 0\.5"):
        train(out=run, resume=True)


def test_an_edited_model_is_refused(run: Path) -> None:
    plan = json.loads((run / "config.json").read_text())
    plan["model"]["width"] = 64
    (run / "config.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=r"plan\.model\.width was \d+ and is 64"):
        train(out=run, resume=True)


def test_what_changes_no_weight_may_be_edited(run: Path, whole: Path) -> None:
    plan = json.loads((run / "config.json").read_text())
    plan["train"] |= {"workers": 3, "max_broken": 0.5, "checkpoint_every": 7, "keep": 1}
    (run / "config.json").write_text(json.dumps(plan))
    train(out=run, resume=True)
    assert same(run, whole)


def test_a_damaged_plan_is_one_line(run: Path) -> None:
    text = (run / "config.json").read_text()
    for content in ("", text[: len(text) // 2], "[]", '{"recipe": 1}'):
        (run / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json: not the plan of a run"):
            train(out=run, resume=True)


def test_one_process_at_a_time(run: Path, tmp_path: Path) -> None:
    with working_in(run), pytest.raises(ConfigError, match="another process is working on"):
        train(out=run, resume=True)
    new = tmp_path / "new"
    with working_in(new), pytest.raises(ConfigError, match="another process is working on"):
        train(data="sample", out=new, changes=SETTINGS)


def test_a_run_that_died_before_its_plan_can_be_begun_again(tmp_path: Path) -> None:
    for name in (".lock", "survey.json", ".config.json.abcd1234", ".survey.json.x_y_z123"):
        (tmp_path / name).write_text("half")
    train(data="sample", out=tmp_path, changes=SETTINGS | {"budget": 1.0})
    assert not list(tmp_path.glob(".*.json*"))


def test_checkpoints_are_counted_by_number(tmp_path: Path) -> None:
    steps = (7, 99_999_999, 100_000_000)
    for step in steps:
        checkpoint_path(tmp_path, step).write_bytes(b"")
    for name in ("best.safetensors", "step-00000009.safetensors.damaged", ".step-00000009.x"):
        (tmp_path / name).write_bytes(b"")
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in steps[::-1]]
    prune_checkpoints(tmp_path, 2)
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in steps[:0:-1]]


@pytest.mark.parametrize("padding", ["reflect", "zero"])
def test_a_checkpoint_with_removed_options_needs_their_defaults(
    run: Path, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(path: Path) -> Checkpoint:
        found = read_checkpoint(path)
        settings = dict(found.progress.settings) | {"ghost_batches": 1}
        settings["augment"] = {**settings["augment"], "shift_padding": padding}
        return replace(found, progress=replace(found.progress, settings=settings))

    monkeypatch.setattr("vitlab.training.checkpoint.read_checkpoint", older)
    if padding == "reflect":
        train(out=run, resume=True)
        return
    with pytest.raises(ConfigError, match=r"augment.shift_padding': found 'zero'.*removed"):
        train(out=run, resume=True)
