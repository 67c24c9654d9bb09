"""A server in a process of its own, and images to send to it."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from vitlab.classify.classifier import open_classifier
from vitlab.serve.app import build
from vitlab.serve.server import Server, bind
from vitlab.serve.service import Service
from vitlab.serve.settings import Settings

SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass
class Running:
    """A process that serves, and its address."""

    process: subprocess.Popen[str]
    url: str
    client: httpx.Client

    def post(self, path: str = "/classify", **options: Any) -> httpx.Response:
        return self.client.post(self.url + path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(self.url + path, **options)

    def exchange(self, raw: bytes) -> bytes:
        """Beginning of the answer to bytes on a connection of their own; empty: it was closed."""
        with self.connect() as connection:
            try:
                connection.sendall(raw)
                return connection.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                return b""

    def connect(self) -> socket.socket:
        """A new connection."""
        address = httpx.URL(self.url)
        return socket.create_connection((address.host, address.port), timeout=30)

    def children(self) -> list[int]:
        """Ids of the processes that decode."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def memory(self) -> int:
        """Resident bytes of the server and its decoders."""
        pids = (self.process.pid, *self.children())
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> tuple[int, str]:
        """Exit code after SIGTERM, and standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def serving(
    *options: str, model: str = "cifar10", by: str = "serve", threads: int = 1
) -> Iterator[Running]:
    """A server on a free port, from its first line on; `by` is the command that starts it."""
    command = [sys.executable, "-m", "vitlab", by, model, "--port", "0", *options]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": f"{threads}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if {"--quiet", "--no-browser"} & {*options} else subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"{model}: http://"), line
        with httpx.Client(timeout=60) as client:
            yield Running(process, line.split()[-1], client)
    finally:
        process.kill()
        process.communicate()


def photo(seed: int = 0, *, size: tuple[int, int] = (48, 40), kind: str = "JPEG") -> bytes:
    """Bytes of an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


class Sleepy:
    """An engine that takes a fixed time for each image, and may be held up."""

    batch_size = workers = 1

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.busy = seconds, 0.0
        self.batches: list[int] = []
        self.begun = 0
        self.go = threading.Event()
        self.go.set()

    def predict(self, pixels: Any) -> Any:
        begun = time.monotonic()
        self.begun += 1
        self.go.wait(30)
        time.sleep(self.seconds * len(pixels))
        self.busy += time.monotonic() - begun
        self.batches.append(len(pixels))
        return np.full((len(pixels), 10), 0.1, np.float32)

    def start_worker(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to close."""


def service_of(engine: Any = None, **settings: Any) -> Service:
    """Service in this process, which computes with `engine`."""
    given: dict[str, Any] = {"decoders": 1, "port": 0, "deadline": 30.0, **settings}
    service = Service(open_classifier("cifar10", engine="onnxruntime"), Settings(**given))
    if engine is not None:
        service.compute._open = lambda: engine
    return service


@asynccontextmanager
async def asking(service: Service, *, start: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Client of an application in this process, without connections."""
    transport = httpx.ASGITransport(app=build(service))
    try:
        if start:
            await service.start()
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        if start:
            await service.close()


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[int]:
    """Port of a server in this process."""
    ready, listener = asyncio.Event(), bind(service.settings)
    server = Server(service, ready.set)
    task = asyncio.create_task(server.run_service(listener))
    try:
        started = asyncio.create_task(ready.wait())
        await asyncio.wait({started, task}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert started.done()
        yield listener.getsockname()[1]
    finally:
        server._stop()
        await task


def counted(text: str, name: str) -> dict[str, float]:
    """Values of a metric by its labels, as Prometheus prints them."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {
        key.removeprefix(name).strip("{}"): float(value)
        for key, _, value in lines
        if key.partition("{")[0] == name
    }
