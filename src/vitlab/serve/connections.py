"""HTTP/1.1 connections: how many there may be, and how long each may stay in one phase."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

Phase = Literal["head", "rest", "answer", "closing"]
SECONDS: dict[Phase, float] = {"head": 10.0, "rest": 10.0, "answer": 30.0, "closing": 10.0}
"""Seconds to send the headers of a request, the rest of a body that is answered already, to read an
answer, and to read the end of it on a connection that is closing."""
EVERY = 1.0
"""Seconds between two looks at all connections."""


class Protocol(H11Protocol):
    """HTTP/1.1 that knows the phase of its connection."""

    limit = 1000
    refused: Callable[[], None] = staticmethod(lambda: None)

    _phase: tuple[Phase, object] | None = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or answer 429 and close it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            type(self).refused()
            transport.write(too_many(self.limit))
            transport.close()

    def look(self, now: float) -> None:
        """Close the connection if it has been in one phase of one request for too long."""
        phase = self._phase_now()
        if phase != self._phase:
            self._phase, self._since = phase, now
        elif phase is not None and now - self._since > SECONDS[phase[0]]:
            if phase[0] in ("head", "rest"):
                self.transport.close()
            else:  # what is not read would keep it open
                self.transport.abort()

    def _phase_now(self) -> tuple[Phase, object] | None:
        """Phase and request; None: the request is worked on, which the deadline ends."""
        cycle = self.cycle
        found: Phase | None = None
        if self.transport.is_closing():
            found = "closing"
        elif cycle is not None and cycle.response_started and not cycle.response_complete:
            found = "answer"
        elif self.conn.their_state is h11.IDLE:
            found = "head"
        elif cycle is not None and cycle.response_complete:
            found = "rest"
        return None if found is None else (found, cycle)


def too_many(limit: int) -> bytes:
    """Answer to a connection beyond the limit."""
    body = json.dumps({"error": f"too many connections; valid: at most {limit}"}).encode()
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def look_at(connections: set[Any]) -> None:
    """Look at all connections again and again."""
    while True:
        now = time.monotonic()
        for connection in tuple(connections):
            connection.look(now)
        await asyncio.sleep(EVERY)
