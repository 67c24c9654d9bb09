"""A small HTTP server on this machine, and one of files that can be told to misbehave."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What the server holds, how it behaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    """Whether it can resume."""
    cut: list[int] = field(default_factory=list)
    """Bytes after which each next answer breaks off."""
    status: list[int] = field(default_factory=list)
    """Codes of the next answers instead of the file."""
    length: int | None = None
    """A Content-Length that is not true."""
    announce: bool = True
    """Whether it says how long an answer is."""
    tag: str | None = None
    """The ETag; a Range that is to hold only for another edition gets everything."""
    hold: Callable[[], None] | None = None
    """Called in the middle of each answer."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of every request."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no news."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address, without a slash at its end, at which a handler answers in silence."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    server = Server(("127.0.0.1", 0), quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving() -> Iterator[Served]:
    """The files as long as they are needed."""
    served = Served()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, served)

    with listening(Files) as address:
        served.address = f"{address}/"
        yield served


def answer(handler: BaseHTTPRequestHandler, served: Served) -> None:
    wanted = handler.headers.get("Range")
    served.asked.append((handler.path, wanted))
    content = served.files.get(handler.path.lstrip("/"))
    code = served.status.pop(0) if served.status else 200
    if content is None or code != 200:
        handler.send_error(404 if content is None else code)
        return
    other = handler.headers.get("If-Range", served.tag) != served.tag
    resumes = wanted is not None and served.ranges and not other
    start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if resumes else 0
    if start >= len(content) > 0:
        handler.send_error(416)
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    length = len(content) - start if served.length is None else served.length
    if served.announce:
        handler.send_header("Content-Length", str(length))
    if served.tag is not None:
        handler.send_header("ETag", served.tag)
    handler.end_headers()
    end = served.cut.pop(0) if served.cut else len(content)
    middle = (start + max(start, end)) // 2
    handler.wfile.write(content[start:middle])
    if served.hold is not None:
        handler.wfile.flush()
        served.hold()
    handler.wfile.write(content[middle:end])
    handler.close_connection = True
