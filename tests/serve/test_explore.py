"""The page and its requests: numbers equal those of the library, and nothing else is served."""

import asyncio
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from serve.server import Running, photo, serving
from vitlab.classify.classifier import Classifier, open_classifier
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.serve.app import build
from vitlab.serve.network import Network, warm_up
from vitlab.serve.page_facts import FILES, read_page
from vitlab.serve.samples import CHOSEN, samples_of
from vitlab.serve.service import Service
from vitlab.serve.settings import Settings
from vitlab.serve.static_page import LIKELY, targets_of, write_static
from vitlab.weights.source import WeightSource

SEED = int.from_bytes(np.random.default_rng().bytes(2), "little")
EXACT: Any = {"rtol": 1e-5, "atol": 1e-6}
"""Other kernels than those of `model.attention` may round the last bits of float32."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--engine", "torch", "--quiet") as running:
        yield running


def floats(answer: Any) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    shape = [int(side) for side in answer.headers["x-shape"].split(",")]
    return np.frombuffer(answer.content, "<f4").reshape(shape)


def network(**changes: Any) -> tuple[Classifier, np.ndarray]:
    """A random network with another size along each axis, and an input of it."""
    torch.manual_seed(SEED)
    settings: Any = {"width": 24, "depth": 3, "heads": 2, "mlp_width": 40, "patch_size": 4}
    settings |= {"image_size": (12, 20), "classes": 7, **changes}
    model = VisionTransformer(ViTConfig(**settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    half = (0.5, 0.5, 0.5)
    preprocessing = Preprocessing(size=(12, 20), mean=half, std=half)
    source = WeightSource(format="vitlab", path=Path("random"), preprocessing=preprocessing)
    pixels = np.random.default_rng(SEED).integers(0, 256, (3, 12, 20), dtype=np.uint8)
    return Classifier(model, source), pixels


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"registers": 2},
    {"class_token": False, "pool": "mean"},
    {"registers": 1, "pool": "mean"},
    {"class_token": False, "pool": "map"},
)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_attention_is_that_of_the_model(changes: dict[str, Any]) -> None:
    classifier, pixels = network(**changes)
    inside = Network(classifier)
    facts = inside.facts()
    assert facts["grid"] == (3, 5)
    prefix = facts["class_token"] + facts["registers"]
    with torch.no_grad():
        expected = classifier.model.attention(inside.images(pixels))
    for layer in range(3):
        found = inside.attention(pixels, layer)
        assert found.shape == (2, prefix + 16, prefix + 15)
        np.testing.assert_allclose(found[:, :-1], expected[layer][0].numpy(), **EXACT)
        row = inside.attention(pixels, layer, token=prefix + 4)
        np.testing.assert_array_equal(row[:, 0], found[:, prefix + 4])
        if facts["pool"] == "cls":
            np.testing.assert_allclose(found[:, -1], found[:, 0], **EXACT)
        elif facts["pool"] == "mean":
            np.testing.assert_allclose(found[:, -1], found[:, prefix:-1].mean(1), **EXACT)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_last_layer_answers_as_the_model(changes: dict[str, Any]) -> None:
    classifier, pixels = network(**changes)
    inside = Network(classifier)
    assert inside.predicted(pixels) is None
    found = inside.layers(pixels)
    assert found.shape == (3, 7)
    np.testing.assert_array_equal(inside.predicted(pixels), found[-1])
    answer = classifier.probabilities(inside.images(pixels))[0]
    np.testing.assert_allclose(found[-1], answer.numpy(), **EXACT)
    assert np.abs(found[0] - found[-1]).max() > 1e-3


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_rollout_of_all_patches(changes: dict[str, Any]) -> None:
    classifier, pixels = network(**changes)
    inside = Network(classifier)
    found = inside.rollout(pixels)
    assert found.shape == (16, 3, 5)
    image = Image.fromarray(pixels.transpose(1, 2, 0).copy())
    for token, place in ((7, (1, 2)), (15, None)):
        expected = classifier.explain(image, method="rollout", token=place).map
        np.testing.assert_allclose(found[token], expected, **EXACT)
        np.testing.assert_allclose(inside.rollout(pixels, token)[0], expected, **EXACT)


@pytest.mark.parametrize("changes", [{"registers": 2}, {"class_token": False, "pool": "mean"}])
def test_a_static_page_has_what_the_server_answers(tmp_path: Path, changes: dict[str, Any]) -> None:
    classifier, _ = network(**changes)
    place = tmp_path / "a.jpg"
    place.write_bytes(photo(SEED))
    assert write_static(tmp_path / "page", classifier, samples_of([place])) > 10_000
    page, data = tmp_path / "page", tmp_path / "page" / "data"
    facts = json.loads((data / "model.json").read_text())
    assert (facts["samples"], facts["targets"]) == (["a.jpg"], list(range(7)))
    assert b'data-source="files"' in (page / "index.html").read_bytes()
    assert {path.name for path in (page / "page").iterdir()} == set(FILES)
    pixels = np.fromfile(data / "0" / "pixels.bin", np.uint8).reshape(3, 12, 20)
    np.testing.assert_array_equal(pixels, classifier.preprocessing.pixels(place))
    inside, tokens = Network(classifier), facts["tokens"][0]
    for layer in range(3):
        content = (data / "0" / f"attention-{layer}.bin").read_bytes()
        highest = np.frombuffer(content, "<f4", 2 * (tokens + 1)).reshape(2, -1, 1)
        parts = np.frombuffer(content, np.uint8, offset=highest.nbytes)
        expected = inside.attention(pixels, layer)
        found = parts.reshape(expected.shape) / 255 * highest
        assert (np.abs(found - expected) <= highest * 0.501 / 255).all()
    for name, expected in {
        "layers": inside.layers(pixels),
        "rollout": inside.rollout(pixels),
        "gradcam": np.stack([inside.map(pixels, "gradcam", target) for target in range(7)]),
        "predict": inside.layers(pixels)[-1],
    }.items():
        found = np.fromfile(data / "0" / f"{name}.bin", "<f4").reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(vitlab.VitlabError, match="page: exists; valid: a new folder"):
        write_static(page, classifier, samples_of([place]))
    place.write_bytes(b"no image")
    with pytest.raises(vitlab.VitlabError, match=r"a\.jpg: "):
        write_static(tmp_path / "other", classifier, samples_of([place]))
    assert {path.name for path in tmp_path.iterdir()} == {"a.jpg", "page"}


def test_of_many_classes_the_likeliest_have_maps() -> None:
    rows = [np.random.default_rng(seed).random(1000, dtype=np.float32) for seed in range(5)]
    found = targets_of(rows)
    assert len(found) <= 5 * LIKELY
    assert {int(row.argmax()) for row in rows} <= set(found)


@pytest.mark.parametrize("method", ["rollout", "relevance", "gradcam"])
def test_maps_are_those_of_explain(server: Running, method: str) -> None:
    classifier = vitlab.load("cifar10")
    sample = server.get("/explore/samples/1").content
    pixels = server.post("/explore/pixels", content=sample).content
    path = "/explore/rollout?token=21"
    if method != "rollout":
        path = f"/explore/map?method={method}&target=4"
    found = floats(server.post(path, content=pixels))
    options: Any = {"token": (2, 5)} if method == "rollout" else {"target": 4}
    image = Image.open(io.BytesIO(sample))
    expected = classifier.explain(image, method=method, **options).map
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-6)


def test_attention_of_a_served_model(server: Running) -> None:
    classifier = vitlab.load("cifar10")
    pixels = server.post("/explore/pixels", content=photo(SEED)).content
    found = floats(server.post("/explore/attention?layer=1", content=pixels))
    given = np.frombuffer(pixels, np.uint8).reshape(3, 32, 32)
    with torch.no_grad():
        expected = classifier.model.attention(Network(classifier).images(given))[1][0]
    np.testing.assert_allclose(found[:, :-1], expected.numpy(), **EXACT)


def test_painted_pixels_are_predicted_as_an_image(server: Running) -> None:
    facts = server.get("/explore/model").json()
    pixels = server.post("/explore/pixels", content=photo(SEED)).content
    painted = np.frombuffer(pixels, np.uint8).reshape(3, 32, 32).copy()
    painted[:, 8:20, 4:16] = np.array(facts["fill"])[:, None, None]
    found = floats(server.post("/explore/predict", content=painted.tobytes()))
    image = Image.fromarray(painted.transpose(1, 2, 0).copy())
    (expected,) = vitlab.load("cifar10").predict(image, top=10)
    for label, probability in expected.top:
        assert found[facts["labels"].index(label)] == pytest.approx(probability, abs=1e-6)


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    page = server.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert page.headers["content-type"].startswith("text/html")
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {Path(name).name for name in files} <= FILES.keys()
    for name, kind in FILES.items():
        answer = server.get(f"/page/{name}")
        assert answer.headers["content-type"].split(";")[0] == kind
    content = read_page()
    assert sum(map(len, content.values())) < 150_000
    for name, text in content.items():
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", text), name
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*src=)|\son\w+=", page.text)


def test_every_word_is_used() -> None:
    content = {name: text.decode() for name, text in read_page().items()}
    english = content.pop("words.js").split("const CHINESE")[0]
    rest = "".join(content.values())
    indirect = re.compile(
        r"about(Attention|Rollout|Relevance|Gradcam)|pool_\w+|(copied|copyYourself)"
    )
    for word in re.findall(r'^  (\w+): "', english, re.MULTILINE):
        reasons = ("exported", "failed", "cnn")  # named by the facts of the server
        assert f'"{word}"' in rest or word in reasons or indirect.match(word), word


def test_both_languages_have_the_same_words() -> None:
    text = read_page()["words.js"].decode()
    english, chinese = (
        text.split(f"const {name} = {{")[1].split("\n};")[0] for name in ("ENGLISH", "CHINESE")
    )
    pattern = re.compile(r'^  (\w+): "(.*)",$', re.MULTILINE)
    one, two = dict(pattern.findall(english)), dict(pattern.findall(chinese))
    assert one.keys() == two.keys()
    for key in one:
        assert set(re.findall(r"\{\w+\}", one[key])) == set(re.findall(r"\{\w+\}", two[key])), key
        assert one[key].count("|") == two[key].count("|")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("attention?layer=7", 422, "layer '7'; valid: 0 to 6"),
        ("attention", 422, "layer ''; valid: 0 to 6"),
        ("attention?layer=0&token=65", 422, "token '65'; valid: 0 to 64"),
        ("map?method=magic", 422, "method 'magic'; valid: relevance, gradcam"),
        ("map?method=relevance&target=10", 422, "target '10'; valid: 0 to 9"),
        ("rollout?token=65", 422, "token '65'; valid: 0 to 64"),
    ],
)
def test_wrong_requests_are_refused(server: Running, path: str, status: int, message: str) -> None:
    answer = server.post(f"/explore/{path}", content=bytes(3 * 32 * 32))
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_pixels_of_another_size_are_refused(server: Running) -> None:
    short = server.post("/explore/predict", content=bytes(100))
    assert (short.status_code, short.json()["error"]) == (422, "100 bytes of pixels; valid: 3072")
    assert server.post("/explore/predict", content=bytes(4000)).status_code == 413
    assert server.post("/explore/pixels", content=b"no image").status_code == 415


@pytest.mark.parametrize("name", ["index.html", "../app.py", "%2e%2e%2fapp.py", "nothing.js"])
def test_only_files_of_the_page_are_served(server: Running, name: str) -> None:
    assert server.get(f"/page/{name}").status_code == 404


def test_samples_are_images_of_the_package(server: Running) -> None:
    names = server.get("/explore/model").json()["samples"]
    assert names == list(CHOSEN)
    assert server.get(f"/explore/samples/{len(names)}").status_code == 422
    classifier = vitlab.load("cifar10")
    for number, name in enumerate(names):
        image = Image.open(io.BytesIO(server.get(f"/explore/samples/{number}").content))
        assert image.size == (32, 32)
        assert classifier.predict(image)[0].label == name


def test_samples_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/one.png", "two.jpg"):
        (tmp_path / name).write_bytes(photo(kind=name[-3:].upper().replace("JPG", "JPEG")))
    (tmp_path / "empty").mkdir()
    found = samples_of([tmp_path])
    assert set(found.names) == {"one.png", "two.jpg"}
    assert found.read(0) == found.paths[0].read_bytes()
    with pytest.raises(vitlab.VitlabError, match="no images; valid"):
        samples_of([tmp_path / "empty"])
    with pytest.raises(vitlab.VitlabError, match="no such file"):
        samples_of([tmp_path / "nowhere"])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    pixels = np.random.default_rng(SEED).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    for name in ("a.tiff", "b.webp", "gone.png"):
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def explored(photographs: Path) -> Iterator[Running]:
    options = ("--no-browser", "--images", str(photographs))
    with serving(*options, by="explore") as running:
        yield running


def test_samples_are_small_images_that_browsers_show(explored: Running, photographs: Path) -> None:
    assert explored.get("/explore/model").json()["samples"] == ["a.tiff", "b.webp", "gone.png"]
    preprocessing = vitlab.load("cifar10").preprocessing
    for number, name in enumerate(("a.tiff", "b.webp")):
        answer = explored.get(f"/explore/samples/{number}")
        assert answer.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(answer.content)).size == (128, 77)
        found = explored.get(f"/explore/samples/{number}/pixels").content
        expected = preprocessing.pixels(photographs / name)
        np.testing.assert_array_equal(np.frombuffer(found, np.uint8), expected.ravel())


def test_a_sample_that_is_gone_is_reported(explored: Running, photographs: Path) -> None:
    (photographs / "gone.png").unlink()
    for path in ("/explore/samples/2", "/explore/samples/2/pixels"):
        answer = explored.get(path)
        assert (answer.status_code, answer.json()["error"]) == (
            404,
            "gone.png: cannot be read any more",
        )
    assert explored.get("/explore/samples/3/pixels").status_code == 422


def test_everything_that_the_page_shows_is_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("attention", "layers", "map"):
        monkeypatch.setattr(
            Network, name, lambda *given, name=name: called.append((name, *given[2:]))
        )
    warm_up(vitlab.load("cifar10"))
    assert called == [
        ("attention", 0),
        ("layers",),
        ("map", "relevance", None),
        ("map", "gradcam", None),
    ]


def test_an_exported_file_only_predicts(tmp_path: Path) -> None:
    bundle = Path(vitlab.__file__).parent / "bundled" / "vit_cifar.cifar10"
    (tmp_path / "model.onnx").write_bytes((bundle / "model.onnx").read_bytes())
    with serving("--quiet", model=str(tmp_path / "model.onnx")) as server:
        facts = server.get("/explore/model").json()
        assert (facts["kind"], set(facts["methods"].values())) == ("exported", {"exported"})
        pixels = server.post("/explore/pixels", content=photo(SEED)).content
        assert floats(server.post("/explore/predict", content=pixels)).shape == (10,)
        refused = server.post("/explore/attention?layer=0", content=pixels)
        assert refused.status_code == 422


def test_weights_that_torch_cannot_open_are_not_called_an_exported_file() -> None:
    classifier = open_classifier("cifar10", engine="onnxruntime", quickly=True)

    def fail() -> Classifier:
        raise vitlab.VitlabError("damaged")

    async def facts() -> Any:
        service = Service(classifier, Settings(decoders=1), fail)
        service.warm = True
        transport = httpx.ASGITransport(build(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/explore/model")).json()

    found = asyncio.run(facts())
    assert (found["kind"], set(found["methods"].values())) == ("failed", {"failed"})


def test_weights_beside_an_exported_file_are_opened_for_the_page() -> None:
    with serving("--engine", "onnxruntime", "--quiet") as server:
        while (answer := server.get("/explore/model")).status_code == 408:
            pass  # torch is imported within the deadline or, on a busy machine, after it
        facts = answer.json()
        assert (facts["kind"], facts["engine"]) == ("vit", "onnxruntime")
        assert set(facts["methods"].values()) == {None}
