"""Connections: clients that send or read slowly, leave, are too many, or wait for 100 Continue."""

import asyncio
import base64
import gc
import socket
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from serve.server import Sleepy, counted, listening, photo, service_of
from vitlab.serve import connections
from vitlab.serve.connections import Protocol
from vitlab.serve.server import bind, protocol
from vitlab.serve.service import Service
from vitlab.serve.settings import Settings

IMAGE = photo(1)
HEAD = b"Host: 127.0.0.1\r\nContent-Length: %d\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenths of a second instead of seconds."""
    monkeypatch.setattr(connections, "EVERY", 0.02)
    monkeypatch.setattr(connections, "SECONDS", dict.fromkeys(connections.SECONDS, 0.3))


def with_server(service: Service, test: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with listening(service) as port:
            await asyncio.wait_for(test(port), 60)

    asyncio.run(run())


async def connect(port: int, raw: bytes) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and headers of the next answer, whose body is read."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1]), head.lower()


async def closed_after_trickle(client: Client, piece: bytes) -> float:
    """Seconds until a connection is closed on which a byte arrives again and again."""
    reader, writer = client
    begun = time.monotonic()
    while time.monotonic() - begun < 30:
        writer.write(piece)
        try:
            async with asyncio.timeout(0.05):
                if not await reader.read(1000):
                    break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    writer.close()
    return time.monotonic() - begun


def test_headers_and_bodies_that_trickle_end_their_connection() -> None:
    """The rest of a body is nobody's: its request has been answered."""

    async def test(port: int) -> None:
        loris = await connect(port, b"GET /model HTTP/1.1\r\nX: ")
        assert 0.2 < await closed_after_trickle(loris, b"a") < 15
        early = await connect(port, b"GET /model HTTP/1.1\r\n" + HEAD % 10_000 + b"\r\n")
        assert (await answer(early[0]))[0] == 200
        assert 0.2 < await closed_after_trickle(early, b"a") < 15
        again = await connect(port, b"GET /model HTTP/1.1\r\n" + HEAD % 0 + b"\r\n")
        assert (await answer(again[0]))[0] == 200
        assert 0.2 < await closed_after_trickle(again, b"G") < 15

    with_server(service_of(Sleepy()), test)


def test_requests_in_a_row_keep_their_connection() -> None:
    async def test(port: int) -> None:
        raw = b"POST /classify HTTP/1.1\r\n" + HEAD % len(IMAGE) + b"\r\n" + IMAGE
        reader, writer = await connect(port, b"")
        begun = time.monotonic()
        while time.monotonic() - begun < 0.7:
            writer.write(raw)
            assert (await answer(reader))[0] == 200
        writer.close()

    with_server(service_of(Sleepy()), test)


def test_an_answer_that_is_not_read_ends_its_connection() -> None:
    """Bytes that wait to be sent are counted until then."""
    service = service_of(Sleepy())
    facts = {"kind": "vit", "name": "x" * 8_000_000}

    async def test(port: int) -> None:
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(place, ("127.0.0.1", port))
        await loop.sock_sendall(place, b"GET /explore/model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until = time.monotonic() + 20
        while not service.load.answers and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert service.load.answers > 8_000_000
        while service.load.answers and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert service.load.answers == 0
        place.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitlab.serve.explore.page_facts", lambda *given, **named: facts)
        with_server(service, test)


def test_small_packets_are_sent_at_once() -> None:
    """Without TCP_NODELAY, an answer waits 40 ms for the client's acknowledgement."""

    async def test() -> None:
        seen: list[int] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind(Settings(port=0))
        async with await asyncio.start_server(accept, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            assert await reader.read() == b""
            writer.close()
        assert seen == [1]

    asyncio.run(test())


def test_connections_are_limited() -> None:
    service = service_of(Sleepy(), max_connections=3)

    async def test(port: int) -> None:
        raw = b"GET /metrics HTTP/1.1\r\n" + HEAD % 0 + b"\r\n"
        clients = [await connect(port, b"GET") for _ in range(3)]
        await asyncio.sleep(0.05)
        beyond = await connect(port, b"")
        status, head = await answer(beyond[0])
        assert (status, b"retry-after: 1" in head) == (429, True)
        for _, writer in (*clients, beyond):
            writer.close()
        status, found = 0, b""
        while status != 200:
            reader, writer = await connect(port, raw)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                status, found = int(head.split()[1]), await reader.read(100_000)
            except (asyncio.IncompleteReadError, ConnectionError):
                await asyncio.sleep(0.01)
            writer.close()
        refused = counted(found.decode(), "vitlab_rejected_total")
        assert refused['reason="connections"'] >= 1

    with_server(service, test)


def test_the_limit_of_open_files_limits_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_of(Sleepy())
    assert issubclass(protocol(service), Protocol)
    for files, expected in ((700, 600), (50, 1), (-1, 1000), (10**6, 1000)):
        monkeypatch.setattr(
            "vitlab.serve.server.resource.getrlimit", lambda _, files=files: (files, files)
        )
        assert protocol(service).limit == expected


@pytest.mark.parametrize("path", [b"/classify", b"/explore/pixels"])
def test_a_refused_body_is_not_asked_for(path: bytes) -> None:
    """`Expect: 100-continue`: the client sends the body only after 100."""
    service = service_of(Sleepy(), max_upload=1000)
    waits = b"Expect: 100-continue\r\n\r\n"

    async def test(port: int) -> None:
        large = await connect(port, b"POST " + path + b" HTTP/1.1\r\n" + HEAD % 5000 + waits)
        status, head = await answer(large[0])
        assert (status, b"connection: close" in head) == (413, True)
        assert await large[0].read() == b""
        large[1].close()

    with_server(service, test)


def test_a_body_that_is_wanted_is_asked_for() -> None:
    async def test(port: int) -> None:
        waits = HEAD % len(IMAGE) + b"Expect: 100-continue\r\n\r\n"
        reader, writer = await connect(port, b"POST /classify HTTP/1.1\r\n" + waits)
        assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"100"
        writer.write(IMAGE)
        assert (await answer(reader))[0] == 200
        writer.close()

    with_server(service_of(Sleepy()), test)


def test_the_work_of_a_client_that_leaves_is_dropped() -> None:
    engine = Sleepy()
    service = service_of(engine)

    async def test(port: int) -> None:
        raw = b"POST /classify HTTP/1.1\r\n" + HEAD % len(IMAGE) + b"\r\n" + IMAGE
        engine.batches, engine.begun = [], 0
        engine.go.clear()
        clients = []
        for number in range(4):
            clients.append(await connect(port, raw))
            while len(service.compute._images) < number or not engine.begun:
                await asyncio.sleep(0.001)  # the first one is being computed, the others wait
        for _, writer in clients[1:3]:
            writer.close()
        while service.load.images > 2:
            await asyncio.sleep(0.001)
        engine.go.set()
        for reader, writer in (clients[0], clients[3]):
            assert (await answer(reader))[0] == 200
            writer.close()

    with_server(service, test)
    assert engine.batches == [1, 1]
    text = service.metrics.text().decode()
    assert counted(text, "vitlab_rejected_total") == {'reason="gone"': 2.0}
    assert counted(text, "vitlab_requests_total")['path="/classify",status="499"'] == 2


def test_refused_images_are_not_kept() -> None:
    """Not even until the next collection of cycles, which many of them could precede."""
    text = b'{"images": ["' + base64.b64encode(bytes(3_000_000)) + b'"]}'
    found = []

    async def test(port: int) -> None:
        reader, writer = await connect(port, b"")
        for _ in range(5):
            for kind, body in ((b"image/png", bytes(4_000_000)), (b"application/json", text)):
                head = HEAD % len(body) + b"Content-Type: " + kind + b"\r\n\r\n"
                writer.writelines([b"POST /classify HTTP/1.1\r\n" + head, body])
                assert (await answer(reader))[0] == 415
            found.append(tracemalloc.get_traced_memory()[0])
        writer.close()

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        with_server(service_of(Sleepy()), test)
    finally:
        tracemalloc.stop()
        gc.enable()
    assert found[-1] - found[0] < 3_000_000
