"""The routes of a server: `build` returns an ASGI application around a `Service`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vitlab import __version__
from vitlab.classify.classifier import Classifier
from vitlab.errors import VitlabError
from vitlab.jobs.prediction_records import columns
from vitlab.serve import adapters, inside, parameters
from vitlab.serve.bodies import Gone, images_of, read_body, unless_gone
from vitlab.serve.decoding import first_refusal
from vitlab.serve.explore import page_routes
from vitlab.serve.gate import GONE, Gate, answer
from vitlab.serve.metrics import CONTENT_TYPE
from vitlab.serve.openapi import document
from vitlab.serve.service import Memory, Row, Service, each_good
from vitlab.serve.settings import Refused
from vitlab.weights.bundle import is_bundle, read_bundle_config

DRAINED = 1.0
"""Seconds that the rest of a refused body is read, so that the client sees the answer."""

log = logging.getLogger(__name__)
Handler = Callable[[Request, float], Awaitable[Response]]


def build(service: Service) -> Starlette:
    """Application with all routes."""
    routes = Routes(service)
    table = [
        Route("/classify", routes.guarded(routes.classify), methods=["POST"]),
        Route("/features", routes.guarded(routes.features), methods=["POST"]),
        Route("/explain", routes.guarded(routes.explain), methods=["POST"]),
        Route("/attention", routes.guarded(routes.attention), methods=["POST"]),
        Route("/", routes.guarded(routes.huggingface), methods=["POST"]),
        Route("/model", routes.model),
        Route("/v2", routes.server),
        Route("/v2/health/live", routes.live),
        Route("/v2/health/ready", routes.ready),
        Route("/v2/models/{name}", routes.metadata),
        Route("/v2/models/{name}/ready", routes.model_ready),
        Route("/v2/models/{name}/infer", routes.guarded(routes.infer), methods=["POST"]),
        Route("/health/live", routes.live),
        Route("/health/ready", routes.ready),
        Route("/metrics", routes.metrics),
        Route("/openapi.json", routes.openapi),
        *page_routes(service, routes.guarded),
    ]
    gate = Middleware(
        Gate,
        settings=service.settings,
        metrics=service.metrics,
        paths=frozenset(route.path for route in table),
    )
    handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _bug}
    return Starlette(routes=table, middleware=[gate], exception_handlers=handlers)


class Routes:
    """Handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler with deadline, disconnects and refusals."""

        async def endpoint(request: Request) -> Response:
            service = self._service
            try:
                service.check_open()
                async with asyncio.timeout(service.settings.deadline):
                    expires = time.monotonic() + service.settings.deadline
                    return await handler(request, expires)
            except Refused as error:
                await _discard(request)
                return answer(error, request.scope["request_id"], service.metrics)
            except TimeoutError:
                late = f"no answer within {service.settings.deadline:g} s"
                expired = Refused(408, "deadline", late, {"connection": "close"})
                return answer(expired, request.scope["request_id"], service.metrics)
            except Gone:
                service.metrics.rejected("gone")
                return Response(status_code=GONE)

        return endpoint

    async def classify(self, request: Request, expires: float) -> Response:
        """Labels of the images of a body."""
        service = self._service
        top = parameters.classify(request.query_params)
        found = await self._each(request, lambda images: service.predict(images, expires))
        return JSONResponse({"results": [self._record(one, top) for one in found]})

    async def features(self, request: Request, expires: float) -> Response:
        """Features of the images of a body."""
        service, options = self._service, parameters.features(request.query_params)
        compute = inside.features(await service.inside.network(), **options)

        async def work(images: Sequence[bytes]) -> list[Any]:
            found = await service.pixels(images, expires)
            return await each_good(
                found, lambda one: service.compute.run(partial(compute, [one]), expires)
            )

        found = await self._each(request, work)
        return JSONResponse(_results(found, lambda one: {"features": one[0]}))

    async def explain(self, request: Request, expires: float) -> Response:
        """Maps of the images of a body, or the figure of one image."""
        service, options = self._service, parameters.explain(request.query_params)
        given = inside.explainer(await service.inside.network(), options)
        found = await self._look(request, given, inside.explain, expires)
        if not parameters.wants_png(request.query_params, request.headers.get("accept", "")):
            return JSONResponse(_results(found, lambda one: _without_path(one.to_json())))
        if len(found) != 1:
            raise Refused(422, "body", f"{len(found)} images; valid: one for a PNG, or format=json")
        return Response(await service.inside.draw(found[0]), media_type="image/png")

    async def attention(self, request: Request, expires: float) -> Response:
        """Attention weights of one block for the images of a body."""
        options = parameters.attention(request.query_params)
        network = await self._service.inside.network()
        given = inside.explainer(network, options | {"method": "attention"})
        found = await self._look(request, given, inside.attention, expires)
        return JSONResponse(_results(found, lambda one: one))

    async def _look(
        self, request: Request, given: Any, look: Callable[[Any, Any], Any], expires: float
    ) -> list[Any]:
        """Result of `look` for each image, computed one by one."""
        service = self._service

        async def work(images: Sequence[bytes]) -> list[Any]:
            found = await service.shown(images, expires)
            return await each_good(
                found, lambda one: service.compute.run(partial(look, given, one), expires)
            )

        try:
            return await self._each(request, work)
        except VitlabError as error:  # an option that only this size of image does not support
            raise Refused(422, "parameter", str(error)) from error

    async def _each(
        self, request: Request, work: Callable[[Sequence[bytes]], Awaitable[list[Any]]]
    ) -> list[Any]:
        """Result of `work` with the images of the body."""
        service = self._service
        with service.holding() as memory:
            body = await self._body(request, memory)
            kind = request.headers.get("content-type", "")
            images = images_of(body, kind, most=service.settings.max_queue)
            return await self._work(request, images, work)

    async def _body(self, request: Request, memory: Memory) -> bytes:
        limit = self._service.settings.max_upload
        return await read_body(request, limit=limit, reserve=memory.take)

    async def _work(
        self,
        request: Request,
        images: Sequence[bytes],
        work: Callable[[Sequence[bytes]], Awaitable[list[Any]]],
    ) -> list[Any]:
        with self._service.admitted(len(images)):
            found: list[Any] = await unless_gone(request, work(images))
        return found

    async def _predict(
        self, request: Request, images: Sequence[bytes], expires: float
    ) -> list[Row | Refused]:
        return await self._work(request, images, lambda one: self._service.predict(one, expires))

    async def huggingface(self, request: Request, expires: float) -> Response:
        """`image-classification` of Hugging Face's inference clients."""
        with self._service.holding() as memory:
            body = await self._body(request, memory)
            kind = request.headers.get("content-type", "")
            image, given = adapters.huggingface_request(body, kind)
            predictor = self._service.predictor
            top = adapters.check_parameters(given, predictor.task, most=parameters.MOST_TOP)
            rows = _complete(await self._predict(request, [image], expires))
        return JSONResponse(adapters.huggingface_answer(rows[0], predictor.labels, top))

    async def infer(self, request: Request, expires: float) -> Response:
        """`infer` of the Open Inference Protocol."""
        self._check_name(request)
        with self._service.holding() as memory:
            body = await self._body(request, memory)
            most = self._service.settings.max_queue
            images, name = adapters.inference_images(body, most=most)
            rows = _complete(await self._predict(request, images, expires))
        return JSONResponse(adapters.inference_answer(np.stack(rows), self._name, name))

    @property
    def _name(self) -> str:
        return self._service.classifier.source.path.name

    def _check_name(self, request: Request) -> None:
        if request.path_params["name"] != self._name:
            raise Refused(404, "name", f"no such model; valid: {self._name}")

    async def metadata(self, request: Request) -> Response:
        """Metadata of the model in the Open Inference Protocol."""
        self._check_name(request)
        labels = self._service.predictor.labels
        return JSONResponse(adapters.inference_metadata(self._name, len(labels)))

    async def model_ready(self, request: Request) -> Response:
        """200 when requests are accepted."""
        self._check_name(request)
        return await self.ready(request)

    async def server(self, request: Request) -> Response:
        """Metadata of the server in the Open Inference Protocol."""
        return JSONResponse({"name": "vitlab", "version": __version__, "extensions": []})

    def _record(self, found: Row | Refused, top: int) -> dict[str, Any]:
        predictor = self._service.predictor
        if isinstance(found, Refused):
            record: dict[str, Any] = dict.fromkeys(columns(predictor.task))
            record |= {"top": [], "error": found.message}
        else:
            prediction = predictor.prediction(found, top=top)
            record = {name: getattr(prediction, name) for name in columns(predictor.task)}
        del record["path"]
        return record

    async def model(self, request: Request) -> Response:
        """Facts about the model."""
        classifier = self._service.classifier
        content = _bundle(classifier)
        facts = {
            "name": classifier.source.path.name,
            "task": classifier.source.task,
            "engine": classifier.engine,
            "labels": list(classifier.labels),
            "preprocessing": classifier.preprocessing.to_json(),
            "metrics": content.get("metrics"),
            "licence": content.get("provenance", {}).get("licence") or classifier.source.licence,
            "limits": {
                "max_upload": self._service.settings.max_upload,
                "max_images": self._service.settings.max_queue,
                "deadline": self._service.settings.deadline,
            },
            "version": __version__,
        }
        return JSONResponse(facts)

    async def live(self, request: Request) -> Response:
        """200 while the process works."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """200 when requests are accepted."""
        ready = self._service.ready and not self._service.draining
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Metrics as Prometheus reads them."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Description of the interface."""
        return JSONResponse(document(self._name))


def _bundle(classifier: Classifier) -> dict[str, Any]:
    """Content of `config.json` of a bundle or an exported file; empty for other weights."""
    found: dict[str, Any] = {}
    if classifier.exported is not None:
        found = classifier.exported.content
    elif is_bundle(classifier.source.path):
        found = read_bundle_config(classifier.source.path)
    return found


def _results(found: Sequence[Any], record: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Records of all images in order; of those that cannot be read, only the error."""
    return {
        "results": [
            {"error": one.message} if isinstance(one, Refused) else {**record(one), "error": None}
            for one in found
        ]
    }


def _without_path(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "path"}


def _complete(found: Sequence[Row | Refused]) -> list[Row]:
    """Rows of all images; the first refusal is raised."""
    refusal = first_refusal(found)
    if refusal is not None:
        raise refusal
    return [one for one in found if not isinstance(one, Refused)]


async def _discard(request: Request) -> None:
    """Read the rest of a body: a connection closed under it would lose the answer."""
    try:
        async with asyncio.timeout(DRAINED):
            async for _ in request.stream():
                pass
    except (TimeoutError, RuntimeError, ClientDisconnect):
        return


async def _http_error(request: Request, error: HTTPException) -> Response:
    content = {"error": error.detail, "request_id": request.scope.get("request_id")}
    return JSONResponse(content, status_code=error.status_code, headers=error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    content = {"error": "an error of the server", "request_id": request.scope.get("request_id")}
    return JSONResponse(content, status_code=500)
