"""Run a server: bind, warm up, answer until SIGTERM or SIGINT, finish what was accepted."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from types import ModuleType

import uvicorn

from vitlab.classify.classifier import Classifier
from vitlab.errors import InputError
from vitlab.serve.app import build
from vitlab.serve.connections import Protocol, look_at
from vitlab.serve.service import Service
from vitlab.serve.settings import Settings

BACKLOG = 2048
FILES = 100
"""Files that are open besides connections, at most."""

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None


class Server(uvicorn.Server):
    """Uvicorn that drains a service at SIGTERM and SIGINT, and then ends with exit code 0."""

    def __init__(self, service: Service, started: Callable[[], None]) -> None:
        """`started` is called when the service is ready."""
        settings = service.settings
        config = uvicorn.Config(
            build(service),
            loop="asyncio",
            http=protocol(service),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=ceil(settings.draining),
        )
        super().__init__(config)
        self._service, self._ready = service, started
        self._failure: BaseException | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at the first signal, end at once at the second."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self._service.draining
        self._service.draining = self.should_exit = True

    async def run_service(self, listener: socket.socket) -> None:
        """Serve until a signal; raises if the service cannot start."""
        starting = asyncio.create_task(self._start())
        looking = asyncio.create_task(look_at(self.server_state.connections))
        try:
            await self.serve(sockets=[listener])
        finally:
            starting.cancel()
            looking.cancel()
            await self._service.close()
        if self._failure is not None:
            raise self._failure

    async def _start(self) -> None:
        try:
            await self._service.start()
        except Exception as error:
            self._failure, self.should_exit = error, True
            return
        self._ready()


def protocol(service: Service) -> type[Protocol]:
    """Protocol for as many connections as the settings and the limit of open files allow."""
    limit = service.settings.max_connections
    if resource is not None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = max(1, min(limit, files - FILES)) if files > 0 else limit
    refused = staticmethod(partial(service.metrics.rejected, "connections"))
    return type("Protocol", (Protocol,), {"limit": limit, "refused": refused})


def bind(settings: Settings) -> socket.socket:
    """Listening socket of the address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By this protocol asyncio knows TCP, and turns off the delay of small packets (Nagle).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"address {settings.host}:{settings.port}: {reason}; valid: a free port of this machine"
        ) from error
    listener.listen(BACKLOG)
    return listener


def run(
    classifier: Classifier,
    settings: Settings,
    *,
    open_network: Callable[[], Classifier] | None = None,
    warm_up: Callable[[], None] | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a classifier until SIGTERM or SIGINT; `started` is called with the address.

    `open_network` returns the model in torch, at the first request that needs it; None: such
    requests are refused, unless the classifier is in torch itself. `warm_up` as in `Service`.
    """
    listener = bind(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    service = Service(classifier, settings, open_network, warm_up)
    server = Server(service, lambda: started(address) if started is not None else None)
    asyncio.run(server.run_service(listener))
