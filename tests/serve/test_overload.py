"""More work than a slow model can do: what is accepted is answered, the rest is refused at once."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from serve.server import Sleepy, asking, counted, photo, service_of
from vitlab.serve.claims import SHARE, Claim, Load
from vitlab.serve.compute import Compute, Work
from vitlab.serve.metrics import Metrics
from vitlab.serve.settings import Refused, Settings

IMAGE = photo(1)
FIRST = np.zeros((1, 1, 1), np.uint8)


def test_a_slow_model_under_overload_wastes_nothing() -> None:
    """At three times the capacity, a full queue would take three deadlines."""
    engine = Sleepy(0.025)

    async def run() -> tuple[list[tuple[int, float]], float]:
        service = service_of(engine, deadline=1.0, max_batch=8)
        async with asking(service) as client:
            engine.busy, engine.batches = 0.0, []
            begun = time.monotonic()

            async def ask(number: int) -> tuple[int, float]:
                await asyncio.sleep(begun + number / 120 - time.monotonic())
                answer = await client.post("/classify", content=IMAGE)
                return answer.status_code, time.monotonic() - begun

            found = await asyncio.gather(*(ask(number) for number in range(190)))
            return found, begun

    found, _ = asyncio.run(run())
    ended = [moment for status, moment in found if status == 200]
    refused = [status for status, _ in found if status == 429]
    each = engine.busy / sum(engine.batches)
    assert len(ended) * each > 0.9 * max(ended)
    assert len(refused) > 60
    assert len(ended) + len(refused) > 0.95 * len(found)


def test_what_would_be_late_is_refused_with_the_time_to_wait() -> None:
    engine = Sleepy()

    async def run() -> None:
        service = service_of(engine, deadline=3.0, decoders=1)
        async with asking(service) as client:
            service.compute.seconds_per_image = 0.7
            engine.go.clear()
            tasks = [asyncio.create_task(client.post("/classify", content=IMAGE)) for _ in range(3)]
            while service.load.images < 3:
                await asyncio.sleep(0.001)
            refused = await client.post("/classify", content=IMAGE)
            assert 4 * 0.7 > SHARE * 3.0 > 3 * 0.7
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
            assert "3 images are waiting, 2.1 s of work" in refused.json()["error"]
            engine.go.set()
            assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
            text = (await client.get("/metrics")).text
            assert counted(text, "vitlab_rejected_total") == {'reason="busy"': 1.0}

    asyncio.run(run())


def test_a_lone_request_is_never_refused_as_too_slow() -> None:
    load = Load(Settings(deadline=2.0), lambda: (5.0, 9.0))
    first, second = Claim(load), Claim(load)
    first.admit(7)
    assert load.seconds == 35
    with pytest.raises(Refused) as refused:
        second.admit(1)
    assert refused.value.headers == {"retry-after": "35"}
    first.release()
    second.admit(3, calls=True)
    assert (load.images, load.calls, load.seconds) == (3, 3, 27)
    second.release()
    assert (load.images, load.calls, load.seconds) == (0, 0, 0)


def taken(times: list[float], *, each: float, most: int = 8) -> tuple[list[float], list[float]]:
    """Seconds left of the images in a batch, and of those that wait on."""
    loop = asyncio.new_event_loop()
    compute = Compute(Sleepy, max_batch=most, metrics=Metrics())
    compute.seconds_per_image, now = each, time.monotonic()
    compute._images.extend(Work(left, now + left, loop, loop.create_future()) for left in times)
    batch = [work.task for work in compute._take_images()]
    loop.close()
    return batch, [work.task for work in compute._images]


def test_a_batch_ends_before_the_earliest_deadline_in_it() -> None:
    assert taken([50, 60, 70], each=1.0) == ([50, 60, 70], [])
    assert taken([50, 60, 70], each=0.0, most=2) == ([50, 60], [70])
    assert taken([2.5, 60, 70, 80], each=1.0) == ([2.5, 60], [70, 80])
    assert taken([60, 2.5, 70], each=1.0) == ([60, 2.5], [70])


def test_images_that_would_be_late_are_left_out_unless_nothing_else_waits() -> None:
    assert taken([0.5, 0.9, 60], each=1.0) == ([60], [])
    assert taken([60, 0.5, 70], each=1.0) == ([60, 70], [])
    assert taken([0.5, 0.9], each=1.0) == ([0.9], [])
    assert taken([-1, -2], each=1.0) == ([], [])


def test_calls_and_batches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, order = Sleepy(), list[str]()

    def predict(pixels: Any) -> Any:
        order.append("batch")
        return pixels

    async def run() -> None:
        compute = Compute(lambda: engine, max_batch=2, metrics=Metrics())
        monkeypatch.setattr(engine, "predict", predict)
        later, go = time.monotonic() + 60, threading.Event()
        await compute.start(lambda _: 0.0)
        busy = asyncio.create_task(compute.run(go.wait, later))
        await asyncio.sleep(0.05)
        calls = [compute.run(lambda: order.append("call"), later) for _ in range(4)]
        images = [compute.run(FIRST, later) for _ in range(4)]
        work = asyncio.gather(busy, *calls, *images)
        await asyncio.sleep(0.05)
        go.set()
        await work
        compute.close()

    asyncio.run(run())
    assert order == ["batch", "call", "batch", "call", "call", "call"]
