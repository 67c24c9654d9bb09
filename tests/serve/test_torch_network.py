"""`/features`, `/explain` and `/attention`: equal to the library, and torch only when needed."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.routing import Route

import vitlab
from serve.server import Running, photo, serving
from vitlab.classify.classifier import open_classifier
from vitlab.serve.app import build
from vitlab.serve.decoding import Decoders
from vitlab.serve.openapi import document
from vitlab.serve.service import Service
from vitlab.serve.settings import Refused, Settings
from vitlab.weights.resolve import resolve

IMAGE = photo(17, size=(50, 90), kind="PNG")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--deadline", "60", "--quiet") as running:
        yield running


@pytest.fixture(scope="module")
def classifier() -> Any:
    return vitlab.load("cifar10")


def loads_torch(server: Running) -> bool:
    return "libtorch" in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_torch_is_loaded_at_the_first_such_request(server: Running) -> None:
    assert server.post(content=IMAGE).status_code == 200
    assert not loads_torch(server)
    assert server.post("/features?kind=nothing", content=IMAGE).status_code == 422
    assert loads_torch(server)


@pytest.mark.parametrize(
    "options", [{}, {"kind": "patches", "layer": 1}, {"kind": "pooled", "layer": -1}]
)
def test_features_equal_the_library(
    server: Running, classifier: Any, options: dict[str, Any]
) -> None:
    images = [IMAGE, photo(18)]
    files = {"a": images[0], "b": b"no image", "c": images[1]}
    found = server.post("/features", params=options, files=files).json()["results"]
    expected = classifier.features(images, **options)
    assert "not an image" in found[1]["error"]
    for one, other in zip(found[::2], expected, strict=True):
        assert one["error"] is None
        np.testing.assert_allclose(one["features"], other, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "gradcam", "class": "dog", "layer": "-1"},
        {"method": "attention", "layer": "2", "head": "1", "token": "3,5"},
        {"method": "attention", "each": "head"},
    ],
)
def test_maps_equal_the_library(server: Running, classifier: Any, options: dict[str, Any]) -> None:
    given: dict[str, Any] = dict(options)
    given |= {name: int(given[name]) for name in ("layer", "head") if name in given}
    if "token" in given:
        given["token"] = tuple(map(int, given["token"].split(",")))
    if "class" in given:
        given["target"] = given.pop("class")
    expected = classifier.explain(IMAGE, **given).to_json()
    (found,) = server.post("/explain", params=options, content=IMAGE).json()["results"]
    assert found.keys() == (expected.keys() | {"error"}) - {"path"}
    assert found["picture"] == [50, 90]
    assert found["class"] == expected["class"]
    for name in ("map", "seen"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    for one, other in zip(found["layers"], expected["layers"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("how", [{"params": {"format": "png"}}, {"headers": {"accept": "image/*"}}])
def test_a_figure_is_a_png(server: Running, how: dict[str, Any]) -> None:
    answer = server.post("/explain", content=IMAGE, **how)
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content), formats=["PNG"]) as figure:
        assert min(figure.size) > 300
    several = server.post("/explain?format=png", files={"a": IMAGE, "b": IMAGE})
    assert several.status_code == 422


def test_attention_weights_are_those_of_the_map(server: Running, classifier: Any) -> None:
    query = {"layer": "1", "head": "2"}
    (whole,) = server.post("/attention", params=query, content=IMAGE).json()["results"]
    weights = np.array(whole["weights"])
    rows, columns = whole["grid"]
    assert weights.shape == (whole["prefix"] + rows * columns,) * 2
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-4)
    token = {"token": "2,3"}
    (row,) = server.post("/attention", params=query | token, content=IMAGE).json()["results"]
    place = whole["prefix"] + 2 * columns + 3
    np.testing.assert_allclose(row["weights"], weights[place], atol=1e-6)
    shown = classifier.explain(IMAGE, method="attention", layer=1, head=2, token=(2, 3))
    found = weights[place][whole["prefix"] :].reshape(rows, columns)
    np.testing.assert_allclose(found, shown.map, atol=1e-5)
    heads = [
        server.post("/attention", params={"layer": "1", "head": head}, content=IMAGE)
        for head in range(whole["heads"])
    ]
    each = [answer.json()["results"][0]["weights"] for answer in heads]
    (mean,) = server.post("/attention?layer=1", content=IMAGE).json()["results"]
    np.testing.assert_allclose(np.mean(each, axis=0), mean["weights"], atol=1e-6)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/features?kind=x", "kind of features"),
        ("/features?layer=99", "layer 99"),
        ("/features?layer=1.5", "layer '1.5'"),
        ("/features?size=3", "parameter 'size'; valid: kind, layer"),
        ("/explain?method=magic", "method"),
        ("/explain?class=unicorn", "class"),
        ("/explain?class=" + "x" * 300, "300 characters"),
        ("/explain?head=0", "head 0"),
        ("/explain?method=attention&head=99", "head 99"),
        ("/explain?format=gif", "valid: json, png"),
        ("/attention?token=1", "token '1'"),
        ("/attention?token=99,0", "token 99,0"),
        ("/attention?layer=1&layer=2", "layer twice"),
        ("/classify?topp=3", "valid: top"),
    ],
)
def test_a_wrong_option_is_named(server: Running, path: str, words: str) -> None:
    answer = server.post(path, content=IMAGE)
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize("path", ["/features", "/explain", "/attention"])
def test_a_body_that_is_no_image_is_refused(server: Running, path: str) -> None:
    assert server.post(path, content=b"%!PS-Adobe-3.0 EPSF-3.0\n").status_code == 415
    assert server.post(path, content=IMAGE[:300]).status_code == 400
    assert server.post(path, content=b"").status_code == 400


async def ask(classifier: Any, *paths: str) -> list[httpx.Response]:
    """Answers of a server in this process: torch is loaded here already."""
    service = Service(classifier, Settings(decoders=1, deadline=60.0))
    transport = httpx.ASGITransport(app=build(service))
    try:
        await service.start()
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.post(path, content=IMAGE) for path in paths]
    finally:
        await service.close()


def test_every_route_but_those_of_the_page_is_described() -> None:
    service = Service(open_classifier("cifar10", engine="onnxruntime"), Settings())
    app = build(service)
    routes = {
        (route.path, method)
        for route in app.routes
        if isinstance(route, Route) and not route.path.startswith(("/explore/", "/page/"))
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {
        (path, method.upper())
        for path, entry in document("m")["paths"].items()
        for method in entry.keys() & {"get", "post"}
    }
    assert routes == described


def test_bodies_in_memory_are_bounded() -> None:
    """Uploads that arrive slowly hold only the bytes that have arrived."""
    settings = Settings(decoders=1, deadline=60.0, max_memory=2 * len(IMAGE) - 100)

    async def run() -> list[int]:
        service = Service(open_classifier("cifar10", engine="onnxruntime"), settings)
        transport = httpx.ASGITransport(app=build(service))
        held, go = asyncio.Event(), asyncio.Event()

        async def slowly(wait: asyncio.Event) -> AsyncIterator[bytes]:
            yield IMAGE[: len(IMAGE) // 2]
            held.set()
            await wait.wait()
            yield IMAGE[len(IMAGE) // 2 :]

        try:
            await service.start()
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                first = asyncio.create_task(client.post("/classify", content=slowly(go)))
                await held.wait()
                beside = await client.post("/classify", content=IMAGE[:-200])
                refused = await client.post("/classify", content=IMAGE + bytes(len(IMAGE)))
                go.set()
                found = [beside, refused, await first]
                assert (service.load.bodies, service.load.images) == (0, 0)
                return [answer.status_code for answer in found]
        finally:
            await service.close()

    assert asyncio.run(run()) == [400, 429, 200]


def test_a_decoder_that_cannot_start_again_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.serve.decoding.RETRY", 0.01)
    classifier = open_classifier("cifar10", engine="onnxruntime")

    async def run() -> int:
        decoders = Decoders(classifier.preprocessing, count=1, seconds=30, max_pixels=None)
        decoders.start()
        await decoders.ready()
        start, failures = decoders._start, 0

        async def fail_twice() -> asyncio.subprocess.Process:
            nonlocal failures
            failures += 1
            if failures < 3:
                raise OSError("no process to spare")
            return await start()

        monkeypatch.setattr(decoders, "_start", fail_twice)
        next(iter(decoders._processes)).kill()
        later = time.monotonic() + 60
        with pytest.raises(Refused, match="ends the process"):
            await decoders.decode(IMAGE, later)
        assert (await decoders.decode(IMAGE, later)).shape == (3, 32, 32)
        await decoders.close()
        return failures

    assert asyncio.run(run()) == 3


def test_images_of_clients_that_left_are_not_kept() -> None:
    """Without a running process, all wait."""
    classifier = open_classifier("cifar10", engine="onnxruntime")

    async def run() -> list[int]:
        decoders = Decoders(classifier.preprocessing, count=1, seconds=30, max_pixels=None)
        later = time.monotonic() + 60
        tasks = [asyncio.create_task(decoders.decode(IMAGE, later)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        found = [decoders._waiting.get_nowait() for _ in tasks]
        for task in tasks:
            task.cancel()
        return [len(job.content) for job in found]

    assert asyncio.run(run()) == [len(IMAGE), 0, len(IMAGE)]


def test_an_exported_file_only_predicts() -> None:
    folder = resolve("cifar10")
    assert isinstance(folder, Path)
    exported = open_classifier(folder / "model.onnx")
    predicted, *others = asyncio.run(
        ask(exported, "/classify", "/features", "/explain", "/attention")
    )
    assert predicted.status_code == 200
    for answer in others:
        assert answer.status_code == 501
        assert "an exported file only predicts" in answer.json()["error"]


def test_a_model_in_torch_is_served(classifier: Any) -> None:
    predicted, explained = asyncio.run(ask(classifier, "/classify", "/explain"))
    expected = classifier.predict(IMAGE)[0]
    (found,) = predicted.json()["results"]
    assert (found["label"], found["probability"]) == (
        expected.label,
        pytest.approx(expected.probability, abs=1e-5),
    )
    assert explained.json()["results"][0]["class"] == expected.label
