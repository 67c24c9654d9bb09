"""The routes of a server: `build` returns an ASGI application around a `Service`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

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
from vitlab.serve import adapters, parameters, torch_network
from vitlab.serve.answers import NUMBER, Results, Sending, check_length
from vitlab.serve.bodies import ClientGone, images_of, is_json, parsed, read_body, unless_gone
from vitlab.serve.claims import Claim
from vitlab.serve.decoding import first_refusal
from vitlab.serve.explore import page_routes
from vitlab.serve.gate import GONE, Gate, answer
from vitlab.serve.metrics import CONTENT_TYPE
from vitlab.serve.openapi import document
from vitlab.serve.service import Row, Service
from vitlab.serve.settings import Refused
from vitlab.weights.bundle import is_bundle, read_bundle_config

DRAINED = 1.0
"""Seconds that the rest of a refused body is read, so that the client sees the answer."""

MANY = 2000
"""Numbers of an answer that is made in a thread: the event loop goes on."""

Handler = Callable[[Request, float], Awaitable[Response]]
T = TypeVar("T")


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
    handlers: dict[Any, Any] = {HTTPException: _http_error}
    app = Starlette(routes=table, middleware=[gate], exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class Routes:
    """Handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Any]]:
        """A handler with deadline, disconnects and refusals."""

        async def endpoint(request: Request) -> Sending:
            claim = request.state.claim = Claim(self._service.load)
            try:
                return Sending(await self._answered(request, handler, claim), claim)
            except BaseException:
                claim.release()
                raise

        return endpoint

    async def _answered(self, request: Request, handler: Handler, claim: Claim) -> Response:
        service, request_id = self._service, request.scope["request_id"]
        try:
            service.check_open()
            async with asyncio.timeout(service.settings.deadline):
                expires = time.monotonic() + service.settings.deadline
                response = await handler(request, expires)
            claim.hold_answer(len(response.body))
            return response
        except Refused as error:
            error.__traceback__ = None  # a cycle, which would keep the body until it is collected
            await _discard(request, error)
            return answer(error, request_id, service.metrics)
        except TimeoutError:
            late = f"no answer within {service.settings.deadline:g} s"
            expired = Refused(408, "deadline", late, {"connection": "close"})
            return answer(expired, request_id, service.metrics)
        except ClientGone:
            service.metrics.rejected("gone")
            return Response(status_code=GONE)
        finally:
            claim.computed()

    async def classify(self, request: Request, expires: float) -> Response:
        """Labels of the images of a body."""
        top = parameters.classify(request.query_params)
        images = await self._images(request)
        found = await self._predict(request, images, expires)

        def make() -> Response:
            return JSONResponse({"results": [self._record(one, top) for one in found]})

        return await _made(make, numbers=len(found) * min(top, len(self._labels)))

    async def features(self, request: Request, expires: float) -> Response:
        """Features of the images of a body."""
        options = parameters.features(request.query_params)
        compute = torch_network.features(await self._service.inside.network(), **options)
        return await self._look(request, self._service.pixels, compute, expires)

    async def explain(self, request: Request, expires: float) -> Response:
        """Maps of the images of a body, or the figure of one image."""
        service, options = self._service, parameters.explain(request.query_params)
        given = torch_network.explainer(await service.inside.network(), options)
        look = partial(torch_network.explain, given)
        if parameters.wants_png(request.query_params, request.headers.get("accept", "")):
            return await self._figure(request, look, expires)

        def record(shown: Any) -> Mapping[str, Any]:
            return _without_path(look(shown).to_json())

        return await self._look(request, service.shown, record, expires)

    async def _figure(
        self, request: Request, look: Callable[[Any], Any], expires: float
    ) -> Response:
        service, images = self._service, await self._images(request)
        if len(images) != 1:
            raise Refused(422, "body", f"{len(images)} images; valid: one for a PNG, or JSON")

        async def work() -> bytes:
            (shown,) = await service.shown(images, expires)
            return await service.inside.draw(await self._call(look, shown, expires))

        figure = await self._work(request, 1, work(), calls=True)
        return Response(figure, media_type="image/png")

    async def attention(self, request: Request, expires: float) -> Response:
        """Attention weights of one block for the images of a body."""
        options = parameters.attention(request.query_params)
        network = await self._service.inside.network()
        given = torch_network.explainer(network, options | {"method": "attention"})
        look = partial(torch_network.attention, given)
        return await self._look(request, self._service.shown, look, expires)

    async def _look(
        self,
        request: Request,
        read: Callable[[Sequence[bytes], float], Awaitable[list[Any]]],
        look: Callable[[Any], Mapping[str, Any]],
        expires: float,
    ) -> Response:
        """Record of each image, computed one after another: other requests take turns."""
        images = await self._images(request)
        limit = self._service.settings.max_answer
        results = Results(request.state.claim, images=len(images), limit=limit)

        async def work() -> None:
            for one in await read(images, expires):
                good = not isinstance(one, Refused)
                await results.add(await self._call(look, one, expires) if good else one)

        await self._work(request, len(images), work(), calls=True)
        return await asyncio.to_thread(results.response)

    async def _call(self, look: Callable[[Any], Any], given: Any, expires: float) -> Any:
        try:
            return await self._service.compute.run(partial(look, given), expires)
        except VitlabError as error:  # an option that only this size of image does not support
            raise Refused(422, "parameter", str(error)) from error

    async def _images(self, request: Request) -> list[bytes]:
        """Images of the body."""
        kind = request.headers.get("content-type", "")
        most = self._service.settings.max_queue
        body = await self._body(request, json=is_json(kind))
        return await parsed(body, partial(images_of, body, kind, most=most))

    async def _body(self, request: Request, *, json: bool) -> bytes:
        claim: Claim = request.state.claim
        limit = self._service.settings.max_upload
        body = await read_body(request, limit=limit, reserve=claim.take)
        if json:
            claim.take(len(body))  # the texts and images in it
        return body

    async def _work(
        self, request: Request, images: int, work: Coroutine[Any, Any, T], *, calls: bool = False
    ) -> T:
        """Result of work with so many images, unless they are too many or the client leaves."""
        try:
            request.state.claim.admit(images, calls=calls)
        except Refused:
            work.close()
            raise
        found: T = await unless_gone(request, work)
        return found

    async def _predict(
        self, request: Request, images: Sequence[bytes], expires: float
    ) -> list[Row | Refused]:
        return await self._work(request, len(images), self._service.predict(images, expires))

    async def huggingface(self, request: Request, expires: float) -> Response:
        """`image-classification` of Hugging Face's inference clients."""
        kind = request.headers.get("content-type", "")
        body = await self._body(request, json=is_json(kind))
        read = partial(adapters.huggingface_request, body, kind)
        image, given = await parsed(body, read)
        predictor = self._service.predictor
        top = adapters.check_parameters(given, predictor.task, most=parameters.MOST_TOP)
        (row,) = _complete(await self._predict(request, [image], expires))
        return JSONResponse(adapters.huggingface_answer(row, predictor.labels, top))

    async def infer(self, request: Request, expires: float) -> Response:
        """`infer` of the Open Inference Protocol."""
        self._check_name(request)
        body = await self._body(request, json=True)
        most = self._service.settings.max_queue
        images, name = await parsed(body, partial(adapters.inference_images, body, most=most))
        numbers = len(images) * len(self._labels)
        check_length(NUMBER * numbers, self._service.settings.max_answer)
        rows = np.stack(_complete(await self._predict(request, images, expires)))

        def make() -> Response:
            return JSONResponse(adapters.inference_answer(rows, self._name, name))

        return await _made(make, numbers=numbers)

    @property
    def _labels(self) -> Sequence[str]:
        return self._service.predictor.labels

    @property
    def _name(self) -> str:
        return self._service.classifier.source.path.name

    def _check_name(self, request: Request) -> None:
        if request.path_params["name"] != self._name:
            raise Refused(404, "name", f"no such model; valid: {self._name}")

    async def metadata(self, request: Request) -> Response:
        """Metadata of the model in the Open Inference Protocol."""
        self._check_name(request)
        return JSONResponse(adapters.inference_metadata(self._name, len(self._labels)))

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
                "max_answer": self._service.settings.max_answer,
                "deadline": self._service.settings.deadline,
            },
            "version": __version__,
        }
        return JSONResponse(facts)

    async def live(self, request: Request) -> Response:
        """200 while the process works; 503 if a stage has ended: only a restart helps."""
        alive = self._service.alive
        return JSONResponse({"live": alive}, status_code=200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        """200 when requests are accepted."""
        ready = self._service.ready
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


async def _made(make: Callable[[], Response], *, numbers: int) -> Response:
    """Response with so many numbers."""
    return await asyncio.to_thread(make) if numbers > MANY else make()


def _without_path(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "path"}


def _complete(found: Sequence[Row | Refused]) -> list[Row]:
    """Rows of all images; the first refusal is raised."""
    refusal = first_refusal(found)
    if refusal is not None:
        raise refusal
    return [one for one in found if not isinstance(one, Refused)]


async def _discard(request: Request, error: Refused) -> None:
    """Read the rest of a body: a connection closed under it would lose the answer.

    A client that waits for 100 Continue sends nothing after the answer, so the connection ends.
    """
    waits = request.headers.get("expect", "").lower() == "100-continue"
    if waits and not request.state.claim.bodies:
        error.headers["connection"] = "close"
        return
    try:
        async with asyncio.timeout(DRAINED):
            async for _ in request.stream():
                pass
    except (TimeoutError, RuntimeError, ClientDisconnect):
        return


async def _http_error(request: Request, error: HTTPException) -> Response:
    content = {"error": error.detail, "request_id": request.scope.get("request_id")}
    return JSONResponse(content, status_code=error.status_code, headers=error.headers)
