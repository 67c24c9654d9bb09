"""Published checkpoints fetched from a server on this machine, and used by name."""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitlab
from data.recorded_progress import RecordedProgress
from data.server import Served
from vitlab.errors import WeightsError
from vitlab.images.preprocessing import HALF
from vitlab.io import download as downloading
from vitlab.io.download import WORKSHOP
from vitlab.models import variants
from vitlab.weights.fetch import RECORD, fetch, find
from vitlab.weights.resolve import Checkpoint, checkpoint
from weights.published import FILE, list_only, publish, small_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights go; nothing of the user's is seen or touched, and nobody waits."""
    monkeypatch.setenv("VITLAB_WEIGHTS", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloading, "PAUSE", 0.0)
    return tmp_path / "home"


@pytest.fixture
def demo(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    return publish(served, tmp_path, monkeypatch)


def left(home: Path) -> list[str]:
    """Every file below the folder for weights but locks."""
    return sorted(
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.suffix != ".lock" and (path.is_file() or path.parent.name == WORKSHOP)
    )


def test_a_checkpoint_arrives_and_is_pinned(demo: Checkpoint, served: Served, home: Path) -> None:
    fetched = fetch(demo)
    assert fetched.new
    assert fetched.path == home / demo.name / FILE
    assert fetched.path.read_bytes() == served.files[FILE]
    assert fetched.sha256 == hashlib.sha256(served.files[FILE]).hexdigest()
    record = json.loads((home / demo.name / RECORD).read_text())
    assert record["sha256"] == fetched.sha256
    assert record["bytes"] == len(served.files[FILE])
    assert record["url"] == demo.url
    assert left(home) == [f"{demo.name}/{FILE}", f"{demo.name}/{RECORD}"]


def test_a_name_of_timm_loads_the_file_of_ours(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(variants.TABLE, "vit_ti16", variants.variant("vit_test"))
    entry = publish(served, tmp_path, monkeypatch, name="vit_ti16_32.augreg")
    path = fetch(checkpoint("vit_tiny_patch16_32.augreg_in21k_ft_in1k")).path
    with caplog.at_level(logging.WARNING):
        model = vitlab.load_weights("vit_tiny_patch16_32.augreg_in21k_ft_in1k")
    assert (model.source.path, model.source.name) == (path, entry.name)
    assert caplog.messages == [
        "vit_tiny_patch16_32.augreg_in21k_ft_in1k is vit_ti16_32.augreg here"
    ]


def test_a_mirror_has_the_files_below_their_hosts(
    demo: Checkpoint, served: Served, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(served.files[FILE]).hexdigest()
    published = replace(demo, url=f"https://weights.invalid/a/{FILE}", sha256=digest[:8])
    place = f"weights.invalid/a/{FILE}"
    served.files = {place: served.files[FILE]}
    monkeypatch.setenv("VITLAB_MIRROR", served.address)
    assert fetch(published).path == home / demo.name / FILE
    record = json.loads((home / demo.name / RECORD).read_text())
    assert record["url"] == f"{served.address}{place}"

    shutil.rmtree(home / demo.name)
    served.files[place] = served.files[place][:-1] + b"?"
    with pytest.raises(WeightsError, match=f"from {served.address}{place}: .* sha256"):
        fetch(published)
    monkeypatch.setenv("VITLAB_MIRROR", "http://mirror.invalid")
    with pytest.raises(WeightsError, match="valid: https, or http where the whole SHA-256"):
        fetch(published)


def test_what_is_there_is_not_fetched_again(demo: Checkpoint, served: Served) -> None:
    fetch(demo)
    assert not fetch(demo).new
    assert len(served.asked) == 1


def test_a_fetched_checkpoint_is_used_by_name(demo: Checkpoint, tmp_path: Path) -> None:
    path = fetch(demo).path
    model = vitlab.load_weights(demo.name)
    torch.testing.assert_close(dict(model.state_dict()), dict(small_model().state_dict()))
    source = model.source
    assert (source.path, source.name, source.licence) == (path, demo.name, "Apache-2.0")
    assert source.preprocessing is not None
    assert (source.preprocessing.mean, source.preprocessing.keep_aspect) == (HALF, False)
    assert source.labels is not None
    assert source.labels[285] == "Egyptian cat"
    assert vitlab.load(demo.name).labels == source.labels
    assert vitlab.load(Path(demo.name), image_size=48).preprocessing.size == (48, 48)
    for created in (
        vitlab.create_model("vit_test", pretrained=demo.name, classes=1000),
        vitlab.create_model(pretrained=demo.name),
    ):
        assert torch.equal(created.head.weight, model.head.weight)
    for name, format in (("a.npz", "google"), ("a.pth", "timm"), ("a.safetensors", "vitlab")):
        vitlab.save_weights(model, tmp_path / name, format=format)
        kept = vitlab.load_weights(tmp_path / name, heads=2).source
        assert (kept.name, kept.licence) == (demo.name, "Apache-2.0")
    new_head = vitlab.load_weights(demo.name, classes=7)
    assert new_head.source.labels is None


def test_what_is_not_fetched_is_told_with_the_command(demo: Checkpoint) -> None:
    for use in (
        lambda: vitlab.load_weights(demo.name),
        lambda: vitlab.load(demo.name),
        lambda: vitlab.create_model("vit_test", pretrained=demo.name),
    ):
        with pytest.raises(WeightsError, match=r"vitlab weights fetch vit_test\.demo$"):
            use()


def test_the_name_decides_the_image_size(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DINOv2 stores positions for 518 pixels and is evaluated at 224."""
    entry = publish(served, tmp_path, monkeypatch)
    vitlab.save_weights(small_model(image_size=64), tmp_path / "big.npz", format="google")
    served.files[FILE] = (tmp_path / "big.npz").read_bytes()
    fetch(entry)
    model = vitlab.load_weights(entry.name)
    assert model.config.image_size == 32
    assert model.source.preprocessing is not None
    assert model.source.preprocessing.size == (32, 32)
    assert vitlab.load_weights(entry.name, image_size=64).config.image_size == 64


def test_heads_come_from_the_models_name(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of timm and torchvision do not tell them: H/14 has heads of 80, not of 64."""
    entry = publish(served, tmp_path, monkeypatch, url=served.address + "a.pth")
    vitlab.save_weights(small_model(), tmp_path / "a.pth", format="timm")
    served.files["a.pth"] = (tmp_path / "a.pth").read_bytes()
    fetch(entry)
    assert vitlab.load_weights(entry.name).config.heads == 2


def test_an_interrupted_fetch_is_resumed(demo: Checkpoint, served: Served, home: Path) -> None:
    served.tag, served.cut = '"edition"', [10_007] * 9
    with pytest.raises(WeightsError, match=r"vit_test\.demo could not be fetched from .* ended"):
        fetch(demo)
    assert find(demo) is None
    part = home / WORKSHOP / demo.name / f"{FILE}.part"
    assert part.stat().st_size == 10_007
    served.cut, served.asked = [], []
    told = RecordedProgress()
    assert fetch(demo, told).path.read_bytes() == served.files[FILE]
    assert served.asked == [(f"/{FILE}", "bytes=10007-")]
    assert told.steps[0] == (FILE, 10_007, len(served.files[FILE]))
    assert left(home) == [f"{demo.name}/{FILE}", f"{demo.name}/{RECORD}"]


def test_a_published_beginning_of_the_checksum_is_verified(
    demo: Checkpoint, served: Served, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(served.files[FILE]).hexdigest()
    wrong = list_only(replace(demo, sha256="0" * 8), monkeypatch)
    with pytest.raises(WeightsError, match=r"has sha256 \w{64} instead of 00000000"):
        fetch(wrong)
    assert left(home) == []
    assert fetch(replace(demo, sha256=digest[:8])).sha256 == digest


@pytest.mark.parametrize(
    ("changes", "content", "message"),
    [
        ({}, b"<!doctype html><html>sign in first</html>" * 99, "it is an HTML page"),
        ({}, None, "HTTP 404"),
        ({"size": "330.285 MiB"}, b"", "bytes instead of 330.285 MiB"),
        ({"url": "http://127.0.0.1:9/demo.npz"}, b"", "not reached"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(
    demo: Checkpoint,
    served: Served,
    home: Path,
    changes: dict[str, str],
    content: bytes | None,
    message: str,
) -> None:
    if content is None:
        served.files.clear()
    elif content:
        served.files[FILE] = content
    entry = replace(demo, **changes)
    with pytest.raises(WeightsError) as caught:
        fetch(entry)
    assert message in str(caught.value)
    assert f"vit_test.demo could not be fetched from {entry.url}" in str(caught.value)
    assert left(home) == []


def test_a_damaged_copy_is_fetched_again(demo: Checkpoint, served: Served) -> None:
    path = fetch(demo).path
    path.write_bytes(served.files[FILE][:-1] + b"x")
    told = RecordedProgress()
    assert fetch(demo, told).path.read_bytes() == served.files[FILE]
    assert "instead of" in told.notes[0]


def test_a_shortened_copy_is_not_loaded(demo: Checkpoint, served: Served) -> None:
    fetch(demo).path.write_bytes(served.files[FILE][:-9])
    with pytest.raises(WeightsError, match=r"bytes instead of .* vitlab weights fetch vit_test"):
        vitlab.load_weights(demo.name)


def test_another_file_under_the_same_address_is_noticed(
    demo: Checkpoint, served: Served, home: Path, tmp_path: Path
) -> None:
    path = fetch(demo).path
    path.unlink()
    vitlab.save_weights(small_model(classes=999), tmp_path / "new.npz", format="google")
    served.files[FILE] = (tmp_path / "new.npz").read_bytes()
    with pytest.raises(WeightsError, match=r"has changed: sha256 .* first fetched .* delete"):
        fetch(demo)
    assert left(home) == [f"{demo.name}/{RECORD}"]
    (home / demo.name / RECORD).unlink()
    (home / demo.name).rmdir()
    assert fetch(demo).new


def test_the_users_cache_is_looked_in_too(
    demo: Checkpoint, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(demo)
    monkeypatch.setenv("VITLAB_WEIGHTS", str(tmp_path / "other"))
    (tmp_path / "cache" / "vitlab").mkdir(parents=True)
    os.symlink(home, tmp_path / "cache" / "vitlab" / "weights")
    assert find(demo) == tmp_path / "cache" / "vitlab" / "weights" / demo.name / FILE
    assert not fetch(demo).new
    assert not (tmp_path / "other").exists()
