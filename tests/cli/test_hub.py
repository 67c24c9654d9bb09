"""`vitlab push` and `vitlab pull` as commands, and once as the shell starts them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Command
from data.colours import write_colours
from jobs.classifiers import colours
from weights.bundles import make_bundle
from weights.hub_server import TOKEN, Hub, standing_in

# The hub's client hands files to httpx in a way that httpx would rather not see.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with standing_in(monkeypatch, tmp_path / "home") as started:
        yield started


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "run" / "bundle")


def test_there_and_back(command: Command, hub: Hub, bundle: Path, tmp_path: Path) -> None:
    pushed = command("push", bundle.parent, "hf:alice/trees")
    assert (pushed.code, pushed.err) == (0, "")
    assert pushed.out.startswith(f"{hub.address}/alice/trees (private): config.json, ")
    card = hub.repositories["alice/trees"].files["README.md"].decode()
    assert card == command("info", bundle, "--markdown").out
    pulled = command("pull", "hf:alice/trees", "--output", tmp_path / "trees")
    assert (pulled.code, pulled.err) == (0, "")
    assert str(tmp_path / "trees") in pulled.out
    there, back = (
        json.loads(command("info", path, "--json").out) for path in (bundle, tmp_path / "trees")
    )
    assert there.pop("path") != back.pop("path")
    assert there == back


def test_an_address_is_a_model(command: Command, hub: Hub, bundle: Path, tmp_path: Path) -> None:
    address, image = "hf:alice/trees", colours(tmp_path / "images", 1) / "00.png"
    assert command("push", bundle, address).code == 0
    local, there = (
        json.loads(command("predict", place, image, "--engine", "torch", "--json").out)
        for place in (bundle, address)
    )
    assert there == local
    local, there = (json.loads(command("info", m, "--json").out) for m in (bundle, address))
    assert there["provenance"]["recipe"] == "default"
    assert there["metrics"]["test_accuracy"] == 0.9
    assert local.pop("path") != there.pop("path")
    assert there == local
    assert "/home/me/trees" in command("info", address).out


def test_finetune_starts_from_an_address(
    command: Command, hub: Hub, bundle: Path, tmp_path: Path
) -> None:
    assert command("push", bundle, "hf:alice/trees").code == 0
    data = write_colours(tmp_path / "data", {"train": 6, "test": 2})
    outcome = command(
        *("finetune", "--from", "hf:alice/trees", "--data", data, "--out", tmp_path / "new"),
        *("--steps", 1),
    )
    assert outcome.code == 0, outcome.err
    found = json.loads(command("info", tmp_path / "new", "--json").out)
    assert found["provenance"]["from"] == "hf:alice/trees"


def test_json_and_public(command: Command, hub: Hub, bundle: Path) -> None:
    pushed = json.loads(command("push", bundle, "hf:alice/trees", "--public", "--json").out)
    assert pushed["url"] == f"{hub.address}/alice/trees"
    assert pushed["public"] is True
    pulled = json.loads(command("pull", f"hf:alice/trees@{pushed['commit']}", "--json").out)
    assert (pulled["kind"], pulled["commit"]) == ("bundle", pushed["commit"])
    assert (Path(pulled["folder"]) / "model.safetensors").is_file()


def test_a_card_of_ones_own_is_sent(command: Command, hub: Hub, bundle: Path) -> None:
    command("info", bundle, "--markdown", bundle / "README.md")
    own = (bundle / "README.md").read_text() + "\nNot for mushrooms.\n"
    (bundle / "README.md").write_text(own)
    assert command("push", bundle, "hf:alice/trees").code == 0
    assert hub.repositories["alice/trees"].files["README.md"].decode() == own


def test_mistakes_are_one_line(
    command: Command, hub: Hub, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    assert "'hf:abc' is no address" in command("push", bundle, "hf:abc").mistake
    assert "'hf:abc' is no address" in command("pull", "hf:abc", "--output", target).mistake
    assert "no such repository" in command("pull", "hf:bob/none", "--output", target).mistake
    assert "is no bundle" in command("push", tmp_path, "hf:alice/x").mistake
    assert "exists" in command("pull", "hf:bob/none", "--output", bundle).mistake
    monkeypatch.delenv("HF_TOKEN")
    assert "no token" in command("push", bundle, "hf:alice/x").mistake
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in command("pull", "hf:bob/none", "--output", target).mistake
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'vitlab[hub]'" in command("pull", "hf:bob/none").mistake
    assert not target.exists()
    assert hub.repositories == {}


def test_the_environment_alone_says_where_and_who(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    script = (
        "from vitlab.cli.main import run\n"
        f"assert run(['push', {str(bundle)!r}, 'hf:alice/trees']) == 0\n"
        f"assert run(['pull', 'hf:alice/trees', '--output', {str(tmp_path / 'trees')!r}]) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{hub.address}/alice/trees (private)" in done.stdout
    weights = "model.safetensors"
    assert (tmp_path / "trees" / weights).read_bytes() == (bundle / weights).read_bytes()
