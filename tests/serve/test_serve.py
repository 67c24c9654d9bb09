"""`vitlab serve` from outside: results, refusals, overload and the end."""

import base64
import io
import json
import os
import random
import re
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import vitlab
from serve.server import SOURCE, Running, photo, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--deadline", "20", "--max-upload", "300kB", "--quiet") as running:
        yield running


def test_results_equal_those_of_predict(server: Running) -> None:
    """200 images, one to seven in a request beside other requests; 1e-5: batches differ."""
    images, draw = [photo(seed) for seed in range(200)], random.Random(200)
    expected = vitlab.load("cifar10", engine="onnxruntime").predict(images, top=10)
    groups: list[list[bytes]] = []
    while images:
        size = draw.choice((1, 1, 1, 2, 7))
        groups.append(images[:size])
        del images[:size]

    def ask(group: list[bytes]) -> list[dict[str, Any]]:
        if len(group) == 1:
            return server.post("/classify?top=10", content=group[0]).json()["results"]
        files = [(f"image{i}", (f"{i}.jpg", one)) for i, one in enumerate(group)]
        return server.post("/classify?top=10", files=files).json()["results"]

    with ThreadPoolExecutor(8) as pool:
        found = [one for results in pool.map(ask, groups) for one in results]
    for one, other in zip(found, expected, strict=True):
        assert one["label"] == other.label
        assert dict(one["top"]) == pytest.approx(dict(other.top), abs=1e-5)


def test_images_travel_in_batches(server: Running) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: server.post(content=photo()), range(64)))
    text = server.get("/metrics").text
    images, batches = (
        float(re.search(rf"^vitlab_batch_images_{name} (\S+)$", text, re.M)[1])
        for name in ("sum", "count")
    )
    assert images > batches > 0
    assert "vitlab_queue_images 0.0" in text


def test_json_and_forms_are_read(server: Running) -> None:
    image = photo(3)
    alone = server.post(content=image).json()["results"][0]
    text = base64.b64encode(image).decode()
    for one in server.post(json={"images": [text, text]}).json()["results"]:
        assert dict(one["top"]) == pytest.approx(dict(alone["top"]), abs=1e-5)
    mixed = server.post(files={"a": image, "b": b"no image"}).json()["results"]
    assert mixed[0]["label"] == alone["label"]
    assert mixed[1]["label"] is None
    assert "not an image" in mixed[1]["error"]


GIF = [Image.new("L", (9, 8), shade) for shade in (0, 200)]
BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xc3\x50\0\0\xc3\x50\x08\x02\0\0\0"


def animated() -> bytes:
    file = io.BytesIO()
    GIF[0].save(file, "GIF", save_all=True, append_images=GIF[1:])
    return file.getvalue()


def bomb() -> bytes:
    """A PNG whose header claims 50,000 x 50,000 pixels."""
    return BOMB + zlib.crc32(BOMB[12:]).to_bytes(4, "big") + b"\0\0\0\0IDAT"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (photo()[:200], 400),
        (photo(kind="PNG")[:500], 400),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415),
        (b"8BPS\0\1" + bytes(60), 415),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415),
        (b"http://169.254.169.254/latest/meta-data", 415),
        (b"/etc/passwd", 415),
        (animated(), 415),
        (bomb(), 413),
        (bytes(300_001), 413),
        (photo() + b"<script>alert(1)</script>" + bytes(100), 200),
    ],
)
def test_a_hostile_body_is_refused(server: Running, body: bytes, status: int) -> None:
    answer = server.post(content=body)
    assert answer.status_code == status, answer.text
    assert server.post(content=photo()).status_code == 200


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_is_read(server: Running, mode: str) -> None:
    file, kind = io.BytesIO(), "TIFF" if mode == "CMYK" else "PNG"
    if mode == "I;16":
        Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(file, kind)
    else:
        Image.new("RGB", (30, 20), (9, 150, 40)).convert(mode).save(file, kind)
    assert server.post(content=file.getvalue()).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[" * 5000, "application/json", 422),
        (b'{"images": "x"}', "application/json", 422),
        (b'{"images": ["?"]}', "application/json", 422),
        (b'{"images": [1]}', "application/json", 422),
        (b'{"images": ["http://localhost/a.jpg"]}', "application/json", 422),
        (b"--x\r\n\r\nabc", "multipart/form-data; boundary=x", 422),
        (b"--x\r\nabc\r\n--x--", "multipart/form-data; boundary=x", 422),
        (b"abc", "multipart/form-data", 422),
        (b"abc", "multipart/form-data; boundary=" + "x" * 5000, 422),
        (b"\r\n--x\r\n\r\na" * 10_000 + b"\r\n--x--", "multipart/form-data; boundary=x", 413),
        (b"--x--", "multipart/form-data; boundary=x", 400),
    ],
)
def test_a_hostile_form_is_refused(server: Running, content: bytes, kind: str, status: int) -> None:
    answer = server.post(content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("top", ["0", "-1", "x", "1e3", "9" * 5000, "²", ""])
def test_a_wrong_parameter_is_named(server: Running, top: str) -> None:
    answer = server.post("/classify", params={"top": top}, content=photo())
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("top ")


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/%2e%2e/etc/passwd", "/classify/", "/model/x", "/\x00", "//", "/v3"]
)
def test_no_path_leads_elsewhere(server: Running, path: str) -> None:
    raw = f"GET {path.replace(chr(0), '%00')} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    assert server.exchange(raw.encode() + b"\r\n").split()[1] in (b"307", b"400", b"404")


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /model HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n",
        b"GET /model HTTP/1.1\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(server: Running, raw: bytes) -> None:
    assert server.exchange(raw).split()[1] == b"400"


def test_hosts_and_origins_are_checked(server: Running) -> None:
    port = httpx.URL(server.url).port
    assert server.get("/model", headers={"host": "evil.example"}).status_code == 403
    assert server.get("/model", headers={"host": f"localhost:{port}"}).status_code == 200
    assert server.get("/health/live", headers={"host": "evil.example"}).status_code == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        answer = server.post(content=photo(), headers={"origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    for own in (server.url, server.url.replace("http:", "https:")):  # behind a proxy with TLS
        assert server.post(content=photo(), headers={"origin": own}).status_code == 200


def test_answers_carry_an_id_and_safe_headers(server: Running) -> None:
    answer = server.get("/model", headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    other = server.get("/nothing", headers={"x-request-id": "a b"})
    assert other.status_code == 404
    assert re.fullmatch("[0-9a-f]{32}", other.headers["x-request-id"])


def test_the_model_and_the_schema_are_described(server: Running) -> None:
    facts = server.get("/model").json()
    assert facts["labels"] == list(vitlab.load("cifar10", engine="onnxruntime").labels)
    assert facts["metrics"]["test_accuracy"] > 0.9
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/classify", "/features", "/explain", "/attention", "/metrics"} <= paths.keys()
    for path in paths:
        answer = server.get(path.replace("{name}", facts["name"]))
        assert (answer.status_code == 405) == ("get" not in paths[path])


def test_the_client_of_hugging_face_works(server: Running) -> None:
    from huggingface_hub import InferenceClient

    image = photo(11)
    expected = server.post("/classify?top=3", content=image).json()["results"][0]["top"]
    client = InferenceClient(base_url=server.url)
    for options in ({"top_k": 3}, {"top_k": 3, "function_to_apply": "softmax"}):
        found = client.image_classification(image, **options)
        assert [one.label for one in found] == [label for label, _ in expected]
        scores = [one.score for one in found]
        assert scores == pytest.approx([score for _, score in expected], abs=1e-5)
    wrong = {"inputs": "", "parameters": {"function_to_apply": "sigmoid"}}
    assert server.post("/", json=wrong).status_code == 422
    assert server.post("/", json={"inputs": 5}).status_code == 422
    assert server.post("/", json={"inputs": "http://localhost/a.jpg"}).status_code == 422


def test_the_open_inference_protocol_is_spoken(server: Running) -> None:
    assert server.get("/v2/health/live").status_code == 200
    assert server.get("/v2/health/ready").status_code == 200
    name = server.get("/model").json()["name"]
    metadata = server.get(f"/v2/models/{name}").json()
    assert metadata["outputs"][0]["shape"] == [-1, 10]
    assert server.get(f"/v2/models/{name}/ready").status_code == 200
    assert server.get("/v2/models/other").status_code == 404
    images = [base64.b64encode(photo(seed)).decode() for seed in (5, 6, 7)]
    tensor = {"name": "images", "datatype": "BYTES", "shape": [3], "data": images}
    path = f"/v2/models/{name}/infer"
    answer = server.post(path, json={"id": "a1", "inputs": [tensor]}).json()
    assert answer["id"] == "a1"
    rows = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
    for seed, row in zip((5, 6, 7), rows, strict=True):
        best = server.post(content=photo(seed)).json()["results"][0]
        assert row.max() == pytest.approx(best["probability"], abs=1e-5)
    for wrong in ({"shape": [2]}, {"datatype": "FP32"}, {"data": [1, 2, 3]}, {"data": None}):
        assert server.post(path, json={"inputs": [tensor | wrong]}).status_code == 422
    assert server.post("/v2/models/x/infer", json={"inputs": [tensor]}).status_code == 404


def test_an_exported_model_is_served_without_torch(server: Running) -> None:
    server.post(content=photo())
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "onnxruntime" in loaded
    assert "libtorch" not in loaded


def test_a_server_is_ready_after_few_imports(tmp_path: Path) -> None:
    """Modules are counted, since time depends on the machine: 728 with all extras installed."""
    words = ("-X", "importtime", "-m", "vitlab", "serve", "cifar10", "--port", "0", "--quiet")
    listed = tmp_path / "imports"
    with listed.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        assert "http://" in process.stdout.readline()
        process.terminate()
        process.communicate()
    found = [line.rpartition("|")[2].strip() for line in listed.read_text().splitlines()]
    assert {"vitlab.serve.server", "onnxruntime", "numpy"} <= set(found)
    assert len(found) < 900
    assert not {"torch", "matplotlib", "scipy", "transformers", "huggingface_hub"} & set(found)


def test_a_server_that_others_can_reach_warns() -> None:
    with serving("--host", "0.0.0.0") as server:
        code, errors = server.stop()
    assert code == 0
    assert errors.startswith("warning: 0.0.0.0 can be reached by others, and no key is needed")
    assert len(errors.splitlines()) == 1


def test_messages_of_the_http_library_are_json() -> None:
    with serving() as server:
        assert server.exchange(b"\x1b[2J\r\n\r\n").split()[1] == b"400"
        _, errors = server.stop()
    (line,) = map(json.loads, errors.splitlines())
    assert line.keys() == {"time", "level", "message"}
    assert line["level"] == "warning"


def test_developers_have_all_that_a_server_needs() -> None:
    """These tests never skip: `scripts/setup` installs the extra `dev`."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras["serve"]) <= set(extras["dev"])
    assert set(extras["serve"]) >= {"starlette>=1.10"}


def test_keys_and_origins_by_option(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst-key-0123456789\nsecond-key-012345678\n")
    page = "https://page.example"
    with serving("--api-key-file", str(keys), "--allow-origin", page) as server:
        assert server.get("/health/ready").status_code == 200
        assert server.get("/model").status_code == 401
        for wrong in ("first-key-012345678", "", "# ours"):
            assert server.get("/model", headers={"x-api-key": wrong}).status_code == 401
        headers = {"authorization": "Bearer second-key-012345678", "origin": page}
        answer = server.post(content=photo(), headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == page
        code, errors = server.stop()
    lines = [json.loads(line) for line in errors.splitlines()]
    assert (code, len(lines)) == (0, 6)
    assert lines[-1].keys() == {"time", "id", "client", "method", "path", "status", "ms"}
    assert "second-key" not in errors
