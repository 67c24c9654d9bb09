"""Bodies of requests: read up to a limit into memory, and split into images; clients that leave."""

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from vitlab.config import parse_json
from vitlab.serve.settings import Refused

BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([!-:<-~]{1,70}))""", re.ASCII)
END = b"\r\n\r\n"
T = TypeVar("T")
LONGEST_HEADER = 8192
MOST_VALUES = 10_000
"""Values of JSON: an image is one text."""
PIECE = 1 << 20
LARGE = 1 << 18
"""Bytes of a body that is parsed in a thread: the event loop goes on."""


class ClientGone(Exception):
    """The client has closed the connection."""


async def read_body(request: Request, *, limit: int, reserve: Callable[[int], None]) -> bytes:
    """The whole body; Refused beyond the limit. `reserve` is called with the bytes that arrive."""
    announced = request.headers.get("content-length")
    if announced is not None and (not announced.isdecimal() or int(announced) > limit):
        raise too_long(limit)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_long(limit)
            reserve(len(chunk))
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ClientGone from error
    return b"".join(chunks)


async def unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """Result of the work; it is cancelled, and Gone raised, if the client closes first."""
    task = asyncio.ensure_future(work)
    closed = asyncio.ensure_future(_closed(request))
    try:
        await asyncio.wait([task, closed], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        closed.cancel()
        task.cancel()


async def _closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def too_long(limit: int) -> Refused:
    """Refusal of a body that is too long."""
    return Refused(413, "size", f"body too long; valid: at most {limit:,} bytes")


async def parsed(body: bytes, parse: Callable[[], T]) -> T:
    """Result of `parse`, which reads this body."""
    return await asyncio.to_thread(parse) if len(body) > LARGE else parse()


def images_of(body: bytes, content_type: str, *, most: int) -> list[bytes]:
    """Images of a body: of a form, of JSON `{"images": [base64, ...]}`, or the body itself."""
    if content_type.strip().lower().startswith("multipart/"):
        images = parts_of(body, content_type, most=most)
    elif is_json(content_type):
        images = json_images(json_of(body).get("images"), most=most)
    else:
        images = [body]
    if not images:
        raise Refused(400, "image", "no image; valid: the bytes of an image file")
    return images


def is_json(content_type: str) -> bool:
    """True if a body of this type is JSON."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def json_of(body: bytes) -> dict[str, Any]:
    """Object of a JSON body; Refused for more values than a request has, before they are built."""
    values = 0
    for begin in range(0, len(body), PIECE):
        piece = body[begin : begin + PIECE]
        values += sum(map(piece.count, (b",", b"[", b"{")))
        if values > MOST_VALUES:
            raise Refused(422, "body", f"JSON of too many values; valid: at most {MOST_VALUES:,}")
    try:
        found = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise Refused(422, "body", "the body is not JSON") from error
    if not isinstance(found, dict):
        raise Refused(422, "body", "JSON without an object; valid: {...}")
    return found


def json_images(texts: Any, *, most: int) -> list[bytes]:
    """Images from a list of base64 texts."""
    if not isinstance(texts, list) or not texts:
        raise Refused(422, "body", 'no images; valid: {"images": ["<base64>", ...]}')
    if len(texts) > most:
        raise too_many(most)
    return [from_base64(text) for text in texts]


def from_base64(text: Any) -> bytes:
    """Bytes of one base64 text, also of a `data:` address."""
    if not isinstance(text, str):
        raise Refused(422, "body", "an image that is no base64 text; valid: a string")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(422, "body", "an image that is no base64 text") from error


def parts_of(body: bytes, content_type: str, *, most: int) -> list[bytes]:
    """Content of each part of a form, whatever its name; in memory, in linear time."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise Refused(422, "body", "multipart without a boundary of 1 to 70 characters")
    mark = b"\r\n--" + (found[1] or found[2]).encode()
    pieces = (b"\r\n" + body).split(mark, most + 2)
    if len(pieces) > most + 2 or not pieces[-1].startswith(b"--"):
        if len(pieces) > most + 2:
            raise too_many(most)
        raise Refused(422, "body", "multipart without its end")
    return [_content(piece) for piece in pieces[1:-1]]


def _content(piece: bytes) -> bytes:
    end = piece.find(END, 0, LONGEST_HEADER)
    if not piece.startswith(b"\r\n") or end < 0:
        raise Refused(422, "body", "multipart with a damaged part")
    return piece[end + len(END) :]


def too_many(most: int) -> Refused:
    """Refusal of a request with too many images."""
    return Refused(413, "images", f"too many images; valid: at most {most} a request")
