"""Answers of a server in this process: errors, other origins, limits, health, metrics and log."""

import asyncio
import base64
import hashlib
import json
import logging
import sys
import time
from typing import Any

import httpx
import numpy as np
import pytest

import vitlab
from serve.server import Sleepy, asking, counted, photo, service_of
from vitlab.classify.predictor import shortest
from vitlab.errors import InputError
from vitlab.serve import adapters
from vitlab.serve.answers import Results, json_text
from vitlab.serve.claims import Claim
from vitlab.serve.logs import REQUESTS, JsonFormatter
from vitlab.serve.settings import Refused, Settings
from vitlab.serve.torch_network import TorchNetwork

IMAGE = photo(1)
KEY = "key-0123456789-abc"


@pytest.fixture(scope="module")
def network() -> Any:
    return vitlab.load("cifar10")


def requests(
    *given: tuple[Any, ...], start: bool = True, service: Any = None
) -> list[httpx.Response]:
    """Answers to requests in this process: method, path and options of each."""

    async def run() -> list[httpx.Response]:
        async with asking(service or service_of(Sleepy()), start=start) as client:
            return [
                await client.request(method, path, **(options[0] if options else {}))
                for method, path, *options in given
            ]

    return asyncio.run(run())


class Broken(Sleepy):  # type: ignore[misc]
    """An engine that fails after its warm-up."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def predict(self, pixels: Any) -> Any:
        if len(self.batches) >= 2:
            raise self.error
        return super().predict(pixels)


def test_an_error_of_the_engine_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, REQUESTS)
    service = service_of(Broken(RuntimeError("secret\nplace")))
    found, metrics, live = requests(
        ("POST", "/classify", {"content": IMAGE, "headers": {"x-request-id": "abc"}}),
        ("GET", "/metrics"),
        ("GET", "/health/live"),
        service=service,
    )
    assert found.status_code == 500
    assert found.json() == {"error": "an error of the server", "request_id": "abc"}
    assert found.headers["x-request-id"] == "abc"
    assert found.headers["content-security-policy"].startswith("default-src 'self'")
    assert counted(metrics.text, "vitlab_requests_total")['path="/classify",status="500"'] == 1
    assert live.status_code == 200
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["status"] for line in lines if "status" in line] == [500, 200, 200]
    (error,) = [line for line in lines if "traceback" in line]
    assert "secret" in error["traceback"]
    assert "abc" in error["message"]


def test_a_server_that_computes_no_more_is_not_alive(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of(Broken(SystemExit(1)))
    post = ("POST", "/classify", {"content": IMAGE})
    *found, live, ready = requests(
        post, post, ("GET", "/health/live"), ("GET", "/health/ready"), service=service
    )
    assert [answer.status_code for answer in (*found, live, ready)] == [503, 503, 503, 503]
    assert "the compute thread ends" in caplog.text


def test_nothing_is_computed_before_the_warm_up() -> None:
    ready, live, found = requests(
        ("GET", "/health/ready"),
        ("GET", "/health/live"),
        ("POST", "/classify", {"content": IMAGE}),
        start=False,
    )
    assert (ready.status_code, live.status_code, found.status_code) == (503, 200, 503)
    assert found.headers["retry-after"] == "1"
    assert "being loaded" in found.json()["error"]


def test_a_page_of_an_allowed_origin_needs_its_key_only_for_the_request() -> None:
    keys = frozenset({hashlib.sha256(KEY.encode()).digest()})
    page = "https://page.example"
    service = service_of(Sleepy(), keys=keys, origins=(page.upper().replace("HTTPS", "https"),))
    wants = {"origin": page, "access-control-request-method": "POST"}
    preflight, other, without, found = requests(
        ("OPTIONS", "/classify", {"headers": wants}),
        ("OPTIONS", "/classify", {"headers": wants | {"origin": "https://evil.example"}}),
        ("POST", "/classify", {"content": IMAGE, "headers": {"origin": page}}),
        ("POST", "/classify", {"content": IMAGE, "headers": {"origin": page, "x-api-key": KEY}}),
        service=service,
    )
    assert (preflight.status_code, other.status_code) == (204, 403)
    assert preflight.headers["access-control-allow-origin"] == page
    assert "x-api-key" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other.headers
    assert (without.status_code, found.status_code) == (401, 200)
    assert without.headers["access-control-allow-origin"] == page
    exposed = found.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after"} <= set(exposed)


def test_metrics_may_be_read_without_a_key_if_that_is_wanted() -> None:
    for public, status in ((False, 401), (True, 200)):
        service = service_of(Sleepy(), keys=frozenset({b"x"}), public_metrics=public)
        metrics, model = requests(
            ("GET", "/metrics"), ("GET", "/model"), start=False, service=service
        )
        assert (metrics.status_code, model.status_code) == (status, 401)


def test_names_do_not_depend_on_case() -> None:
    service = service_of(Sleepy(), hosts=("Vit.Example.ORG",))
    hosts = ("vit.example.org", "VIT.example.org:8000", "other.example.org")
    answers = requests(
        *(("GET", "/model", {"headers": {"host": host}}) for host in hosts),
        start=False,
        service=service,
    )
    assert [answer.status_code for answer in answers] == [200, 200, 403]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hosts": ("a.example:80",)}, "host 'a.example:80'; valid"),
        ({"hosts": ("https://a.example",)}, "valid: a name"),
        ({"origins": ("https://a.example/",)}, "valid: scheme and host"),
        ({"origins": ("a.example",)}, "valid: scheme and host"),
        ({"drain": 5.0, "deadline": 9.0}, "drain 5 s; valid: at least the deadline, 9 s"),
        ({"max_upload": 0}, "max_upload 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Settings(**given)


def test_limits_follow_from_others() -> None:
    assert Settings().memory == 400_000_000
    assert Settings(max_upload=10**9).memory == 2 * 10**9
    assert (Settings().draining, Settings(deadline=60.0).draining) == (30, 60)


def test_an_empty_image_costs_only_itself() -> None:
    files = {"a": IMAGE, "b": b"", "c": b"no image"}
    found, alone = requests(
        ("POST", "/classify", {"files": files}), ("POST", "/classify", {"content": b""})
    )
    first, *others = found.json()["results"]
    assert first["error"] is None
    assert ["empty image" in one["error"] for one in others] == [True, False]
    assert alone.status_code == 400


def test_json_of_very_many_values_is_refused_before_it_is_built() -> None:
    hostile = b'{"images": [' + b"[]," * 300_000 + b"[]]}"
    texts = [base64.b64encode(photo(seed, size=(200, 300), kind="BMP")).decode() for seed in (1, 2)]
    kind = {"content-type": "application/json"}
    refused, large = requests(
        ("POST", "/classify", {"content": hostile, "headers": kind}),
        ("POST", "/classify", {"json": {"images": texts}}),
    )
    assert refused.status_code == 422
    assert "too many values" in refused.json()["error"]
    assert sum(map(len, texts)) > 400_000
    assert [one["error"] for one in large.json()["results"]] == [None, None]


def test_bodies_of_json_count_twice() -> None:
    text = base64.b64encode(IMAGE).decode()
    service = service_of(Sleepy(), max_memory=int(1.5 * len(text)), max_upload=10**5)
    refused, found = requests(
        ("POST", "/classify", {"json": {"images": [text]}}),
        ("POST", "/classify", {"content": IMAGE}),
        service=service,
    )
    assert (refused.status_code, found.status_code) == (429, 200)
    assert service.load.bodies == 0


def test_answers_are_limited(network: Any) -> None:
    """With a limit of one and a half answers, one image fits, and two do not."""

    async def run() -> None:
        service = service_of(Sleepy())
        service.inside._open = lambda: network
        async with asking(service) as client:
            for path in ("/features?kind=patches", "/attention", "/explain"):
                object.__setattr__(service.settings, "max_answer", 16_000_000)
                length = len((await client.post(path, content=IMAGE)).content)
                object.__setattr__(service.settings, "max_answer", int(1.5 * length))
                assert (await client.post(path, content=IMAGE)).status_code == 200
                refused = await client.post(path, files={"a": IMAGE, "b": IMAGE})
                assert refused.status_code == 422, path
                assert "an answer of about" in refused.json()["error"]
                load = service.load
                assert (load.answers, load.bodies, load.images, load.calls) == (0, 0, 0, 0)

    asyncio.run(run())


def test_results_are_refused_before_their_text_is_made() -> None:
    claim = Claim(service_of().load)

    async def run() -> None:
        results = Results(claim, images=2, limit=1_000_000)
        with pytest.raises(Refused, match=r"about 4\.0 MB"):
            await results.add({"weights": np.zeros((200, 1000), np.float32)})
        await results.add({"weights": np.full((100, 300), 0.25, np.float32)})
        assert claim.answer > 100_000
        await results.add(Refused(400, "image", "broken"))
        found = json.loads(results.response().body)["results"]
        assert found[0]["weights"] == [[0.25] * 300] * 100
        assert found[1] == {"error": "broken"}

    asyncio.run(run())


def test_answers_that_are_not_read_are_limited() -> None:
    service = service_of(max_memory=4_000_000)
    first, second = Claim(service.load), Claim(service.load)
    first.hold_answer(50_000)
    assert service.load.answers == 0
    first.hold_answer(600_000)
    first.hold_answer(900_000)
    with pytest.raises(Refused, match="answers that are not read"):
        second.hold_answer(200_000)
    second.take(4_000_000)
    first.release()
    second.hold_answer(200_000)
    second.release()
    assert (service.load.answers, service.load.bodies) == (0, 0)


def test_predictions_of_many_classes_are_limited_and_exact() -> None:
    rows = np.random.default_rng(3).random((40, 50), np.float32) ** 9
    answer = adapters.inference_answer(rows, "m", None)["outputs"][0]
    assert answer["data"] == [shortest(value) for value in rows.reshape(-1)]
    texts = [base64.b64encode(IMAGE).decode()] * 20
    tensor = {"name": "images", "datatype": "BYTES", "shape": [20], "data": texts}
    service = service_of(Sleepy(), max_answer=1500)
    name = service.classifier.source.path.name
    (refused,) = requests(
        ("POST", f"/v2/models/{name}/infer", {"json": {"inputs": [tensor]}}), service=service
    )
    assert refused.status_code == 422
    assert "an answer of about" in refused.json()["error"]


def test_arrays_become_json() -> None:
    record = {"a": np.float32([[1.5, -2.0], [0.1, 3e-9]]), "b": "\u00e9\n", "c": None, "d": [1]}
    assert json.loads(json_text(record)) == {
        "a": [[1.5, -2.0], [0.1, 0.0]],
        "b": "\u00e9\n",
        "c": None,
        "d": [1],
    }


def test_weights_that_could_not_be_opened_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def opening() -> Any:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise OSError("no space left")
        return "network"

    async def run() -> None:
        inside = TorchNetwork(opening)
        for _ in range(2):
            with pytest.raises(Refused, match="cannot be opened"):
                await inside.network()
        assert len(tries) == 1
        monkeypatch.setattr(inside, "_again", 0.0)
        found: list[Any] = [await inside.network(), await inside.network()]
        assert found == ["network", "network"]
        assert len(tries) == 2
        inside.close()

    asyncio.run(run())


def test_stages_and_paths_are_counted_apart(network: Any) -> None:
    service = service_of(Sleepy())
    service.inside._open = lambda: network
    name = service.classifier.source.path.name
    *_, metrics = requests(
        ("POST", "/classify", {"files": {"a": IMAGE, "b": IMAGE, "c": b"x"}}),
        ("POST", "/explain", {"content": IMAGE}),
        ("POST", "/classify", {"content": b"%!PS-Adobe-3.0 EPSF-3.0"}),
        ("GET", f"/v2/models/{name}"),
        ("GET", "/v2/models/other"),
        ("GET", "/nothing"),
        ("GET", "/classify"),
        ("GET", "/metrics"),
        service=service,
    )
    text = metrics.text
    assert counted(text, "vitlab_batch_images_sum") == {"": 2}
    counts = {
        stage: counted(text, f"vitlab_{stage}_seconds_count")[""]
        for stage in ("wait", "decode_wait", "decode", "compute", "call")
    }
    assert counts["call"] == 1
    assert counts["wait"] == 3
    assert counts["decode"] == counts["decode_wait"] == 5
    assert 1 <= counts["compute"] <= 2
    assert counted(text, "vitlab_rejected_total") == {'reason="image"': 1, 'reason="name"': 1}
    assert counted(text, "vitlab_requests_total") == {
        'path="/classify",status="200"': 1,
        'path="/explain",status="200"': 1,
        'path="/classify",status="415"': 1,
        'path="/v2/models/{name}",status="200"': 1,
        'path="/v2/models/{name}",status="404"': 1,
        'path="other",status="404"': 1,
        'path="/classify",status="405"': 1,
    }


def test_log_lines_are_json_with_a_time() -> None:
    try:
        raise ValueError("\x1b[2J\u202e")
    except ValueError:
        record = logging.LogRecord(
            "uvicorn.error", logging.WARNING, "", 1, "a\n%s", ("\x1b[2J",), sys.exc_info()
        )
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    fields = json.loads(line)
    assert (fields["level"], fields["message"]) == ("warning", "a\n\x1b[2J")
    assert abs(time.time() - record.created) < 60
    assert fields["time"].endswith("Z")
