"""Answers: JSON of results with arrays, within a limit, and their way to clients that read slowly.

Long texts are made in threads, row by row, so that the event loop goes on meanwhile.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vitlab.serve.claims import SMALL, Claim
from vitlab.serve.settings import Refused

DIGITS = 7
"""Decimal places of features and attention weights."""
NUMBER = 10
"""Bytes of a number in JSON, about."""


class Results:
    """Records of the images of a request, as JSON; Refused as soon as they would be too long."""

    def __init__(self, claim: Claim, *, images: int, limit: int) -> None:
        self._claim, self._images, self._limit = claim, images, limit
        self._parts: list[str] = []
        self._length = 0

    async def add(self, found: Mapping[str, Any] | Refused) -> None:
        """Add the record of an image, or the refusal of it."""
        if isinstance(found, Refused):
            text = json_text({"error": found.message})
        else:
            self._check(NUMBER * numbers_in(found))
            text = await asyncio.to_thread(json_text, {**found, "error": None})
        self._check(len(text))
        self._parts.append(text)
        self._length += len(text)
        self._claim.hold_answer(self._length)

    def _check(self, length: int) -> None:
        left = self._images - len(self._parts)
        check_length(self._length + length * left, self._limit)

    def response(self) -> Response:
        """The answer."""
        text = '{"results":[' + ",".join(self._parts) + "]}"
        return Response(text, media_type="application/json")


def check_length(length: int, limit: int) -> None:
    """Refuse an answer that would be too long."""
    if length > limit:
        raise Refused(
            422,
            "answer",
            f"an answer of about {length / 1e6:.1f} MB; valid: at most {limit / 1e6:g} MB, "
            f"by fewer images or parameters that select less",
        )


def numbers_in(record: Mapping[str, Any]) -> int:
    """Numbers in the arrays of a record."""
    return sum(value.size for value in record.values() if isinstance(value, np.ndarray))


def json_text(value: Any) -> str:
    """JSON of a value; arrays only as a whole or as fields of it."""
    if isinstance(value, np.ndarray):
        return _array_text(value)
    if isinstance(value, Mapping):
        fields = (f"{json.dumps(name)}:{json_text(one)}" for name, one in value.items())
        return "{" + ",".join(fields) + "}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _array_text(values: NDArray[Any]) -> str:
    if values.ndim > 1:
        return "[" + ",".join(map(_array_text, values)) + "]"
    return json_text(values.astype(np.float64).round(DIGITS).tolist())


class Sending:
    """A response in pieces, each sent when the client has read those before it.

    What the request holds is released at the end. `connections.Protocol` closes the connection
    of a client that does not read.
    """

    def __init__(self, response: Response, claim: Claim) -> None:
        self._response, self._claim = response, claim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        given, body = self._response, bytes(self._response.body)
        start = {"status": given.status_code, "headers": given.raw_headers}
        try:
            await send({"type": "http.response.start", **start})
            for begin in range(0, len(body) or 1, SMALL):
                piece, more = body[begin : begin + SMALL], begin + SMALL < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._claim.release()
