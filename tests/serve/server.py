"""A server in a process of its own, and images to send to it."""

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

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
def serving(*options: str, model: str = "cifar10") -> Iterator[Running]:
    """A server on a free port, from its first line on."""
    command = [sys.executable, "-m", "vitlab", "serve", model, "--port", "0", *options]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if "--quiet" not in options else subprocess.DEVNULL,
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
