"""The page at `/` and its requests: an image's pixels, predictions, attention and maps.

The page keeps the model input itself, [C, H, W] bytes, and sends it with every request: patches
that are painted away are pixels like others, and nothing of a visitor is kept. Imports no torch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vitlab.errors import InputError
from vitlab.serve.bodies import images_of, read_body, unless_gone
from vitlab.serve.page_facts import FILES, OF_A_CLASS, page_facts, read_page
from vitlab.serve.samples import samples_of, thumbnail
from vitlab.serve.service import Service
from vitlab.serve.settings import Refused

Handler = Callable[[Request, float], Awaitable[Response]]
Guard = Callable[[Handler], Callable[[Request], Awaitable[Response]]]
Decode = Callable[[Sequence[bytes], float], Awaitable[list[Any]]]
Pixels = NDArray[np.uint8]


def page_routes(service: Service, guarded: Guard) -> list[Route]:
    """Routes of the page."""
    page = Page(service)
    posts = {
        "pixels": page.pixels,
        "predict": page.predict,
        "attention": page.attention,
        "rollout": page.rollout,
        "map": page.map,
        "layers": page.layers,
    }
    return [
        Route("/", page.index),
        Route("/page/{name}", page.file),
        Route("/explore/model", guarded(page.model)),
        Route("/explore/samples/{number}", guarded(page.sample)),
        Route("/explore/samples/{number}/pixels", guarded(page.sample_pixels)),
        *(
            Route(f"/explore/{name}", guarded(handler), methods=["POST"])
            for name, handler in posts.items()
        ),
    ]


class Page:
    """Handlers of the page."""

    def __init__(self, service: Service) -> None:
        self._service, self._files = service, read_page()
        self._samples = samples_of(service.settings.samples)
        self._network: Any = None
        self._small: dict[int, bytes] = {}
        self._facts: dict[str, Any] = {}

    async def _open(self) -> None:
        """Open the network and its facts at the first request; without weights, it has no facts."""
        if self._facts and self._facts["kind"] != "failed":  # the weights may be opened again
            return
        inside, kind = self._service.inside, "failed"
        if not inside.has_weights:
            kind = "exported"
        else:
            with suppress(Refused):
                classifier = await inside.network()
                from vitlab.serve.network import Network

                self._network = self._network or Network(classifier)
        names = self._samples.names
        self._facts = page_facts(self._service.classifier, self._network, names, without=kind)

    async def index(self, request: Request) -> Response:
        """The page."""
        return Response(self._files["index.html"], media_type="text/html")

    async def file(self, request: Request) -> Response:
        """Style, code and icon of the page."""
        name = request.path_params["name"]
        if name not in FILES:
            return JSONResponse({"error": "no such file of the page"}, status_code=404)
        return Response(self._files[name], media_type=FILES[name])

    async def model(self, request: Request, expires: float) -> Response:
        """Facts that the controls are built from."""
        await self._open()
        return JSONResponse(self._facts)

    async def sample(self, request: Request, expires: float) -> Response:
        """One of the sample images, small."""
        number = self._sample_number(request)
        if number not in self._small:
            found = await self._decoded(await self._read(number), self._service.shown, expires)
            self._small[number] = await asyncio.to_thread(thumbnail, found.picture)
        return Response(self._small[number], media_type="image/png")

    async def sample_pixels(self, request: Request, expires: float) -> Response:
        """Model input [C, H, W] of one of the sample images, as bytes."""
        content = await self._read(self._sample_number(request))
        return _binary(await self._decoded(content, self._service.pixels, expires))

    def _sample_number(self, request: Request) -> int:
        return _number("sample", request.path_params["number"], len(self._samples.names))

    async def _read(self, number: int) -> bytes:
        try:
            return await asyncio.to_thread(self._samples.read, number)
        except InputError as error:
            name = self._samples.names[number]
            raise Refused(404, "sample", f"{name}: cannot be read any more") from error

    async def pixels(self, request: Request, expires: float) -> Response:
        """Model input [C, H, W] of an image file, as bytes."""
        service = self._service
        with service.holding() as memory:
            limit = service.settings.max_upload
            body = await read_body(request, limit=limit, reserve=memory.take)
            (image,) = images_of(body, "", most=1)
            return _binary(await self._decoded(image, service.pixels, expires))

    async def _decoded(self, image: bytes, decode: Decode, expires: float) -> Any:
        with self._service.admitted(1):
            (found,) = await decode([image], expires)
        return found  # the refusal of a single image has been raised

    async def predict(self, request: Request, expires: float) -> Response:
        """Predictions for a model input, of all classes."""
        await self._open()
        pixels = await self._given(request)
        service, network = self._service, self._network

        def compute() -> Any:  # of an image whose attention was computed, nothing is left to do
            kept = network.predicted(pixels)
            return service.predictor.engine.predict(pixels[None])[0] if kept is None else kept

        in_torch = network is not None and service.classifier.model is not None
        work = compute if in_torch else pixels
        with service.admitted(1):
            row = await unless_gone(request, service.compute.run(work, expires))
        return _binary(np.asarray(row, "<f4"))

    async def attention(self, request: Request, expires: float) -> Response:
        """Attention weights of a layer: all, or one row of every head."""
        await self._open()
        self._require("attention")
        facts = self._facts
        layer = _parameter(request, "layer", len(facts["grids"]))
        rows = facts["tokens"][layer] + 1
        token = _parameter(request, "token", rows, optional=not facts["rows_only"])
        return await self._compute(request, expires, self._network.attention, layer, token)

    async def rollout(self, request: Request, expires: float) -> Response:
        """Rollout to all patches and to the pooling, or to one of them."""
        await self._open()
        self._require("rollout")
        rows, columns = self._facts["grid"]
        wanted = not self._facts["rows_only"]
        token = _parameter(request, "token", rows * columns + 1, optional=wanted)
        return await self._compute(request, expires, self._network.rollout, token)

    async def map(self, request: Request, expires: float) -> Response:
        """Map of the patches for a class, by relevance or Grad-CAM."""
        await self._open()
        method = request.query_params.get("method", "")
        if method not in OF_A_CLASS:
            valid = ", ".join(OF_A_CLASS)
            raise Refused(422, "parameter", f"method {method[:20]!r}; valid: {valid}")
        self._require(method)
        target = _parameter(request, "target", len(self._facts["labels"]), optional=True)
        return await self._compute(request, expires, self._network.map, method, target)

    async def layers(self, request: Request, expires: float) -> Response:
        """Predictions of the head after every layer."""
        await self._open()
        self._require("attention")
        return await self._compute(request, expires, self._network.layers)

    def _require(self, method: str) -> None:
        reason = self._facts["methods"][method]
        if reason is not None:
            raise Refused(422, "parameter", reason)

    async def _compute(
        self,
        request: Request,
        expires: float,
        function: Callable[..., NDArray[np.float32]],
        *place: Any,
    ) -> Response:
        pixels = await self._given(request)

        def call() -> NDArray[np.float32] | Refused:
            try:
                return function(pixels, *place)
            except InputError as error:
                return Refused(422, "parameter", str(error))

        with self._service.admitted(1):
            found = await unless_gone(request, self._service.compute.run(call, expires))
        if isinstance(found, Refused):
            raise found
        return _binary(found)

    async def _given(self, request: Request) -> Pixels:
        """Model input of a body."""
        shape = self._facts["input"]
        size = int(np.prod(shape))
        with self._service.holding() as memory:
            body = await read_body(request, limit=size, reserve=memory.take)
            if len(body) != size:
                raise Refused(422, "body", f"{len(body)} bytes of pixels; valid: {size}")
            return np.frombuffer(body, np.uint8).reshape(shape)


def _parameter(request: Request, name: str, count: int, *, optional: bool = False) -> int | None:
    text = request.query_params.get(name)
    if text is None and optional:
        return None
    return _number(name, text or "", count)


def _number(name: str, text: str, count: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text) < count):
        raise Refused(422, "parameter", f"{name} {text[:20]!r}; valid: 0 to {count - 1}")
    return int(text)


def _binary(values: NDArray[Any]) -> Response:
    shape = {"x-shape": ",".join(map(str, values.shape))}
    return Response(values.tobytes(), media_type="application/octet-stream", headers=shape)
