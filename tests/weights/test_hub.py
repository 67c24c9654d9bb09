"""Bundles to the hub and back, against a stand-in: nothing here leaves this machine."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

import vitlab
from vitlab.errors import FileError, HubError, MissingExtra, VitlabError, WeightsError
from vitlab.weights.hub import Address, parse_address, pull, push
from weights.bundles import (
    LABELS,
    PREPARATION,
    edit_config,
    make_bundle,
    small_model,
    timm_files,
    transformers_files,
)
from weights.hub_server import Hub, standing_in

# The hub's client hands files to httpx in a way that httpx would rather not see.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CARD = "---\nlicense: mit\n---\n# Trees\n"
HERE = "hf:alice/trees"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with standing_in(monkeypatch, tmp_path / "home") as started:
        yield started


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder to pull into; what stays behind in it is seen."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def logits(folder: Path) -> torch.Tensor:
    torch.manual_seed(1)
    with torch.inference_mode():
        return vitlab.load(folder).model(torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:alice/trees", ("alice", "trees", None)),
        ("hf:a-b/vit_b.16-x@v1.0", ("a-b", "vit_b.16-x", "v1.0")),
        ("hf:a/b@refs/pr/1", ("a", "b", "refs/pr/1")),
    ],
)
def test_an_address_has_parts(text: str, parts: tuple[str, str, str | None]) -> None:
    found = parse_address(text)
    assert found == Address(owner=parts[0], name=parts[1], revision=parts[2])
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        *("hf:abc", "alice/trees", "hf:alice/", "hf:/trees", "hf:a/b/c", "hf:a/b@", "hf:a--b/c"),
        *("hf:../x", "hf:a/..", "hf:a b/c", "https://h/a/b", "", "hf:a/b@../x", "hf:-a/b"),
    ],
)
def test_a_wrong_address_is_refused_with_the_form_of_a_right_one(text: str, bundle: Path) -> None:
    for ask in (lambda: pull(text), lambda: push(bundle, text, card=CARD)):
        with pytest.raises(HubError, match=r"is no address.*valid: hf:OWNER/NAME"):
            ask()


def test_a_push_sends_exactly_the_bundle_and_its_card(hub: Hub, bundle: Path) -> None:
    for name in ("optimizer.pt", "train.py", ".env"):
        (bundle / name).write_text("stays at home")
    pushed = push(bundle, HERE, card=CARD)
    repository = hub.repositories["alice/trees"]
    assert repository.files == {
        "config.json": (bundle / "config.json").read_bytes(),
        "model.safetensors": (bundle / "model.safetensors").read_bytes(),
        "README.md": CARD.encode(),
    }
    assert repository.private
    assert len(repository.commits) == 1
    assert (pushed.url, pushed.public) == (f"{hub.address}/alice/trees", False)
    assert pushed.commit == repository.commits[0][0]
    assert set(pushed.files) == set(repository.files)


def test_a_public_push_is_public(hub: Hub, bundle: Path) -> None:
    assert push(bundle, HERE, card=CARD, public=True).public
    assert not hub.repositories["alice/trees"].private


def test_a_second_push_replaces_the_bundle_and_keeps_what_is_not_its_own(
    hub: Hub, bundle: Path
) -> None:
    older = {"model.onnx": b"of older weights", "notes.txt": b"mine"}
    hub.publish("alice/trees", older, private=True)
    push(bundle, HERE, card=CARD)
    files = hub.repositories["alice/trees"].files
    assert set(files) == {"config.json", "model.safetensors", "README.md", "notes.txt"}
    (bundle / "model.onnx").write_bytes(b"of these weights")
    push(bundle, HERE, card=CARD)
    assert hub.repositories["alice/trees"].files["model.onnx"] == b"of these weights"


@pytest.mark.parametrize("public", [True, False])
def test_nobody_publishes_by_mistake(hub: Hub, bundle: Path, public: bool) -> None:
    hub.publish("alice/trees", {}, private=public)
    with pytest.raises(HubError, match=f"is {'private' if public else 'public'} already"):
        push(bundle, HERE, card=CARD, public=public)
    assert hub.repositories["alice/trees"].files == {}


def test_a_push_wants_a_bundle_and_no_revision(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="takes none"):
        push(bundle, f"{HERE}@main", card=CARD)
    with pytest.raises(WeightsError, match="is no bundle"):
        push(tmp_path, HERE, card=CARD)
    assert hub.asked == []


def test_a_bundle_comes_back_as_it_went(hub: Hub, bundle: Path, place: Path) -> None:
    pushed = push(bundle, HERE, card=CARD)
    pulled = pull(HERE, place / "trees")
    assert pulled.folder == place / "trees"
    assert (pulled.kind, pulled.commit, pulled.left_out) == ("bundle", pushed.commit, ())
    assert list(place.iterdir()) == [place / "trees"]
    files = {path.name: path.read_bytes() for path in pulled.folder.iterdir()}
    assert files == hub.repositories["alice/trees"].files
    assert set(pulled.files) == set(files)
    found = vitlab.load(pulled.folder)
    assert (found.labels, found.preprocessing) == (LABELS, PREPARATION)
    assert torch.equal(logits(pulled.folder), logits(bundle))


def test_without_a_folder_it_stays_in_the_cache_and_comes_once(hub: Hub, bundle: Path) -> None:
    push(bundle, HERE, card=CARD)
    first = pull(HERE)
    sent = dict(hub.sent)
    assert sent["model.safetensors"] == (bundle / "model.safetensors").stat().st_size
    again = pull(HERE)
    assert again.folder == first.folder
    assert hub.sent == sent
    assert torch.equal(logits(first.folder), logits(bundle))


def test_a_revision_is_what_was_there_then(hub: Hub, tmp_path: Path, place: Path) -> None:
    old, new = (make_bundle(tmp_path / str(seed), small_model(seed=seed)) for seed in (1, 2))
    then = push(old, HERE, card=CARD).commit
    push(new, HERE, card=CARD)
    assert torch.equal(logits(pull(f"{HERE}@{then}", place / "old").folder), logits(old))
    assert torch.equal(logits(pull(HERE, place / "new").folder), logits(new))
    with pytest.raises(HubError, match="no such revision"):
        pull(f"{HERE}@v9", place / "none")


def test_a_repository_of_transformers_opens_and_its_pickles_and_code_stay_there(
    hub: Hub, tmp_path: Path, place: Path
) -> None:
    hub.publish("bob/vit", transformers_files(tmp_path / "theirs"))
    hub.repositories["bob/vit"].licence = "mit"
    pulled = pull("hf:bob/vit", place / "vit")
    assert (pulled.kind, pulled.licence) == ("weights", "mit")
    assert pulled.left_out == ("modeling_custom.py", "onnx/model.onnx", "pytorch_model.bin")
    assert {path.name for path in pulled.folder.iterdir()} == set(pulled.files)
    assert not {"modeling_custom.py", "pytorch_model.bin"} & set(hub.sent)
    found = vitlab.load(pulled.folder)
    assert found.source.format == "huggingface"
    assert found.labels == LABELS
    assert found.preprocessing.mean == PREPARATION.mean
    with torch.inference_mode():
        images = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(found.model(images), small_model()(images))


def test_tokenizers_and_configs_of_text_towers_come_along(
    hub: Hub, tmp_path: Path, place: Path
) -> None:
    beside = [
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
        *("merges.txt", "spiece.model", "open_clip_config.json", "processor_config.json"),
    ]
    files = transformers_files(tmp_path / "theirs")
    hub.publish("bob/clip", files | dict.fromkeys(beside, b"{}"))
    pulled = pull("hf:bob/clip", place / "clip")
    assert set(beside) <= set(pulled.files)
    assert (pulled.folder / "spiece.model").read_bytes() == b"{}"


def test_a_repository_of_timm_opens(hub: Hub, tmp_path: Path, place: Path) -> None:
    hub.publish("bob/timm", timm_files(tmp_path / "theirs.safetensors"))
    found = vitlab.load(pull("hf:bob/timm", place / "timm").folder)
    assert found.source.format == "timm"
    assert found.labels == LABELS
    assert found.preprocessing.crop == 0.9


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same model in two files and an index."""
    whole = load(files.pop("model.safetensors"))
    names = sorted(whole)
    where = {name: f"model-{i % 2 + 1}-of-2.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(where.values())):
        files[file] = save({name: whole[name] for name in names if where[name] == file})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    return files


def test_shards_come_together(hub: Hub, tmp_path: Path, place: Path) -> None:
    files = transformers_files(tmp_path / "theirs")
    hub.publish("bob/whole", dict(files))
    hub.publish("bob/parts", shards(dict(files)))
    whole, parts = (pull(f"hf:bob/{name}", place / name).folder for name in ("whole", "parts"))
    assert torch.equal(logits(whole), logits(parts))
    broken = shards(dict(files))
    del broken["model-2-of-2.safetensors"]
    hub.publish("bob/broken", broken)
    with pytest.raises(HubError, match=r"no shard 'model-2-of-2\.safetensors'"):
        pull("hf:bob/broken", place / "broken")
    assert not (place / "broken").exists()


BERT = save({f"bert.encoder.layer.{i}.weight": torch.zeros(300, 300) for i in range(9)})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "found: nothing"),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pickled weights are not taken"),
        ({"model.safetensors": b"x"}, "valid: config.json with model.safetensors"),
        ({"config.json": b"{}", "model.safetensors": BERT}, "of no known format"),
        ({"config.json": b"no JSON", "model.safetensors": BERT}, "config.json: not JSON"),
        ({"config.json": b'{"format_version": 99}', "model.safetensors": BERT}, "99; valid: 1"),
        ({"config.json": b'{"format_version": 1}', "model.safetensors": BERT}, "no model in it"),
    ],
)
def test_what_is_no_model_of_ours_or_theirs_is_refused(
    hub: Hub, place: Path, files: dict[str, bytes], message: str
) -> None:
    hub.publish("bob/x", files)
    with pytest.raises(HubError, match=message) as refused:
        pull("hf:bob/x", place / "x")
    assert str(refused.value).startswith("hf:bob/x: ")
    assert str(place) not in str(refused.value)
    assert list(place.iterdir()) == []


def test_foreign_tensors_are_looked_at_before_they_are_downloaded(hub: Hub, place: Path) -> None:
    hub.publish("bob/bert", {"config.json": b"{}", "model.safetensors": BERT})
    with pytest.raises(HubError, match="bert"):
        pull("hf:bob/bert", place / "bert")
    assert hub.sent["model.safetensors"] < len(BERT) / 2


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("cached", [False, True])
def test_what_came_damaged_is_not_kept(
    hub: Hub, bundle: Path, place: Path, file: str, cached: bool
) -> None:
    push(bundle, HERE, card=CARD)
    hub.damaged = {file}
    output = None if cached else place / "trees"
    with pytest.raises(HubError, match=f"{file} came damaged: its digest is"):
        pull(HERE, output)
    assert list(place.iterdir()) == []
    hub.damaged = set()
    assert torch.equal(logits(pull(HERE, output).folder), logits(bundle))


def test_a_folder_that_is_taken_is_left_alone(hub: Hub, bundle: Path, place: Path) -> None:
    push(bundle, HERE, card=CARD)
    asked = len(hub.asked)
    (place / "trees").mkdir()
    (place / "trees" / "mine.txt").write_text("mine")
    with pytest.raises(FileError, match="exists; choose another"):
        pull(HERE, place / "trees")
    with pytest.raises(FileError, match="does not exist"):
        pull(HERE, place / "no" / "trees")
    assert len(hub.asked) == asked
    (place / "trees" / "mine.txt").unlink()
    assert pull(HERE, place / "trees").kind == "bundle"


def test_without_a_token_nothing_is_sent_and_nothing_private_seen(
    hub: Hub, bundle: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(bundle, HERE, card=CARD)
    for token, refusal in ((None, "no token to write with"), ("hf_wrong", "token was refused")):
        monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubError, match=refusal):
            push(bundle, "hf:alice/other", card=CARD)
        with pytest.raises(HubError, match="no such repository"):
            pull(HERE, place / "trees")
    assert set(hub.repositories) == {"alice/trees"}
    assert list(place.iterdir()) == []


def test_a_token_that_may_only_read_is_told_apart(hub: Hub, bundle: Path) -> None:
    hub.forbidden = True
    with pytest.raises(HubError, match="may not do that"):
        push(bundle, HERE, card=CARD)


def test_no_such_repository(hub: Hub, place: Path) -> None:
    with pytest.raises(HubError, match="hf:bob/none: no such repository at http"):
        pull("hf:bob/none", place / "none")
    assert list(place.iterdir()) == []


def test_a_hub_that_fails_is_one_line(hub: Hub, bundle: Path, place: Path) -> None:
    hub.down = True
    for ask in (lambda: pull(HERE, place / "x"), lambda: push(bundle, HERE, card=CARD)):
        with pytest.raises(HubError, match="answered 500"):
            ask()
    assert list(place.iterdir()) == []


def test_a_hub_that_cannot_be_reached_is_one_line(
    hub: Hub, bundle: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", nobody)
    for ask in (lambda: pull(HERE, place / "x"), lambda: push(bundle, HERE, card=CARD)):
        with pytest.raises(HubError, match=f"{HERE}: {nobody} cannot be reached"):
            ask()
    assert list(place.iterdir()) == []


def test_offline_means_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        pull(HERE)
    assert hub.asked == []


def test_without_the_extra_it_says_which_one(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (lambda: pull(HERE), lambda: push(bundle, HERE, card=CARD)):
        with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[hub\]'"):
            ask()


def test_a_full_disk_is_not_taken_for_a_bad_connection(
    hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    push(bundle, HERE, card=CARD)
    monkeypatch.setattr("huggingface_hub.HfApi.hf_hub_download", full)
    with pytest.raises(VitlabError, match=r"cannot be written \(No space left on device\)"):
        pull(HERE)


def test_a_fault_of_ours_is_not_blamed_on_the_hub(
    hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("huggingface_hub.HfApi.whoami", wrong)
    with pytest.raises(KeyError, match="ours"):
        push(bundle, HERE, card=CARD)


def test_a_bundle_without_its_model_says_so(bundle: Path) -> None:
    edit_config(bundle, model=None)
    with pytest.raises(WeightsError, match="no model in it"):
        vitlab.load(bundle)
