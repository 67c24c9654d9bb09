"""An HTTP server of files that answers ranges, and can be told to fail."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from data.server import listening


@dataclass
class Faults:
    """How requests fail: by the end of their path, what happens to the next ones."""

    plan: dict[str, list[str]] = field(default_factory=dict)
    """`503`, `404`, `stall`, `cut`, `whole` (no ranges); the last one is repeated."""
    asked: list[str] = field(default_factory=list)
    """Path and range of each request for content."""
    release: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def next(self, path: str) -> str | None:
        """Fault of a request."""
        for ending, faults in self.plan.items():
            if path.endswith(ending) and faults:
                return faults[0] if len(faults) == 1 else faults.pop(0)
        return None


@contextmanager
def store_of(root: Path) -> Iterator[Faults]:
    """The files of a folder at an address."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            answer(self, root, faults, body=False)

        def do_GET(self) -> None:
            answer(self, root, faults, body=True)

    with listening(Handler) as address:
        faults.address = address
        try:
            yield faults
        finally:
            faults.release.set()


def answer(handler: BaseHTTPRequestHandler, root: Path, faults: Faults, *, body: bool) -> None:
    path = root / handler.path.lstrip("/")
    fault = faults.next(handler.path) if body else None
    if body:
        faults.asked.append(f"{handler.path} {handler.headers.get('Range', '')}".strip())
    if not path.is_file() or fault in ("404", "503"):
        handler.send_error(int(fault) if fault else 404)
        return
    if fault == "stall":
        faults.release.wait(60)
        return
    content = path.read_bytes()
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range") or "")
    start, end = 0, len(content)
    if wanted and fault != "whole":
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
    else:
        handler.send_response(200)
    handler.send_header("Content-Length", str(end - start))
    handler.send_header("Accept-Ranges", "bytes")
    handler.end_headers()
    if body:
        handler.wfile.write(content[start : start + (end - start) // 2 if fault == "cut" else end])
    if fault == "cut":
        handler.close_connection = True
