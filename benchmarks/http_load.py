"""Load on an HTTP server from a process of its own: `python http_load.py JSON`, figures as JSON.

Plain asyncio protocols that send prepared bytes, so that the load takes little of the machine. A
closed loop has a number of clients, each of which waits for its answer before the next request. An
open loop sends at a fixed rate whatever the server does, and counts time from the planned moment.
"""

import asyncio
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LATE, BROKEN = 0, -1
"""Statuses of requests that nobody waits for any longer, and of lost connections."""


@dataclass(frozen=True)
class Answer:
    """One request: seconds from the planned moment to the answer, and when it ended."""

    status: int
    seconds: float
    ended: float
    body: bytes = b""


class Connection(asyncio.Protocol):
    """One connection that is kept open; one request at a time."""

    def __init__(self) -> None:
        self._found: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = b""
        self._transport: Any = None
        self.closed = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._settle(BROKEN, b"")

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(one[15:]) for one in lines if one.startswith(b"content-length:")), 0)
        if len(body) < length:
            return
        if b"connection: close" in lines:
            self.close()
        self._settle(int(head[9:12]), body)

    def _settle(self, status: int, body: bytes) -> None:
        self._received = b""
        if self._found is not None and not self._found.done():
            self._found.set_result((status, body))

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to one request."""
        if self.closed:
            return BROKEN, b""
        self._found = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._found

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._transport.abort()


class Client:
    """Connections to one server, opened when none is idle."""

    def __init__(self, port: int, deadline: float) -> None:
        self._port, self._deadline = port, deadline
        self._idle: deque[Connection] = deque()

    async def send(self, request: bytes, planned: float) -> Answer:
        """Send one request; its time counts from `planned`."""
        try:
            async with asyncio.timeout_at(planned + self._deadline):
                status, body = await self._exchange(request)
        except TimeoutError:
            status, body = LATE, b""
        now = time.monotonic()
        return Answer(status, now - planned, now, body)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        while self._idle and self._idle[-1].closed:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            return await connection.exchange(request)
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            if not connection.closed:
                self._idle.append(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, found = await loop.create_connection(Connection, "127.0.0.1", self._port)
        except OSError:
            found = Connection()
            found.closed = True
        return found


async def closed_loop(
    client: Client, requests: Sequence[bytes], *, clients: int, seconds: float, count: int | None
) -> list[Answer]:
    """Answers to clients that wait; for a time, or until so many requests are sent."""
    until, sent = time.monotonic() + seconds, 0
    found: list[Answer] = []

    async def run() -> None:
        nonlocal sent
        while time.monotonic() < until and (count is None or sent < count):
            sent += 1
            request = requests[sent % len(requests)]
            found.append(await client.send(request, time.monotonic()))

    await asyncio.gather(*(run() for _ in range(clients)))
    return found


async def open_loop(
    client: Client, requests: Sequence[bytes], *, rate: float, seconds: float
) -> list[Answer]:
    """Answers to requests at a fixed rate."""
    begun, tasks = time.monotonic(), []
    for number in range(round(rate * seconds)):
        planned = begun + number / rate
        await asyncio.sleep(max(0.0, planned - time.monotonic()))
        request = requests[number % len(requests)]
        tasks.append(asyncio.create_task(client.send(request, planned)))
    return list(await asyncio.gather(*tasks))


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Figures of one load.

    `times` has the seconds of each answer by its status, `ended` when they came, from the start of
    the load; with `bodies`, the answers themselves.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    requests = [Path(file).read_bytes() for file in given["requests"]]
    client = Client(given["port"], given["deadline"])
    begun = time.monotonic()
    if given["rate"]:
        load = open_loop(client, requests, rate=given["rate"], seconds=given["seconds"])
    else:
        count = given["count"]
        load = closed_loop(
            client, requests, clients=given["clients"], seconds=given["seconds"], count=count
        )
    answers = asyncio.run(load)
    elapsed = time.monotonic() - begun
    times: dict[str, list[float]] = {}
    ended: dict[str, list[float]] = {}
    for answer in answers:
        times.setdefault(str(answer.status), []).append(round(answer.seconds, 6))
        ended.setdefault(str(answer.status), []).append(round(answer.ended - begun, 6))
    bodies = [answer.body.decode() for answer in answers] if given["bodies"] else []
    return {"elapsed": elapsed, "times": times, "ended": ended, "bodies": bodies}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
