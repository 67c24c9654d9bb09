"""The gate in front of every route: hosts, origins, keys, request ids, headers and one log line."""

import ipaddress
import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab.serve.logs import REQUESTS
from vitlab.serve.metrics import Metrics
from vitlab.serve.settings import Refused, Settings

CSP = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY = {
    "cache-control": "no-store",
    "content-security-policy": CSP,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
OPEN = ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")
"""Paths of probes: no key, any Host."""
METRICS = "/metrics"
EXPOSED = "retry-after, x-request-id, x-shape"
"""Headers of an answer that web pages of allowed origins may read."""
GONE = 499
"""Status in the log of a request whose client left before its answer."""

log = logging.getLogger(__name__)
requests = logging.getLogger(REQUESTS)


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: ASGIApp, *, settings: Settings, metrics: Metrics, paths: frozenset[str]
    ) -> None:
        """`paths` are the names under which requests are counted."""
        self._app, self._settings, self._metrics, self._paths = app, settings, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, begun = Headers(scope=scope), time.monotonic()
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.match(given) else uuid.uuid4().hex
        scope["request_id"], status = request_id, GONE

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._dress(MutableHeaders(scope=message), headers, request_id)
            await send(message)

        try:
            await self._inside(scope, headers)(scope, receive, dressed)
        except Refused as error:
            await answer(error, request_id, self._metrics)(scope, receive, dressed)
        except Exception:
            log.exception("request %s failed", request_id)
            if status != GONE:  # an answer has begun
                raise
            await _bug(request_id)(scope, receive, dressed)
        finally:
            self._metrics.answered(self._name(scope), status)
            _log(scope, request_id, status, time.monotonic() - begun)

    def _inside(self, scope: Scope, headers: Headers) -> ASGIApp:
        """The application, or the answer to a preflight, which has no key; Refused otherwise."""
        path: str = scope["path"]
        if path in OPEN:
            return self._app
        self._check_source(headers)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            return _preflight()
        keyless = not self._settings.keys or (self._settings.public_metrics and path == METRICS)
        if not keyless and not self._settings.is_key(_key(headers)):
            raise Refused(401, "key", "no valid key", {"www-authenticate": "Bearer"})
        return self._app

    def _name(self, scope: Scope) -> str:
        """Path under which a request is counted: that of its route, with names for its parts."""
        route, path = scope.get("route"), scope["path"]
        return route.path if route is not None else path if path in self._paths else "other"

    def _check_source(self, headers: Headers) -> None:
        if "transfer-encoding" in headers and "content-length" in headers:
            close = {"connection": "close"}
            raise Refused(400, "length", "two lengths of one body; valid: one of them", close)
        host = headers.get("host", "").lower()
        if not self._is_host(host):
            raise Refused(403, "host", "this Host is not served; valid: --allow-host NAME")
        origin = headers.get("origin")
        if origin is not None and not self._is_origin(origin.lower(), host):
            raise Refused(403, "origin", "this Origin is not allowed; valid: --allow-origin URL")

    def _is_host(self, host: str) -> bool:
        """Accept addresses, which cannot be rebound, and names that were allowed."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self._settings.host, *self._settings.hosts):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_origin(self, origin: str, host: str) -> bool:
        """Accept the own page, also behind a proxy with TLS, and origins that were allowed."""
        own = (f"http://{host}", f"https://{host}")
        return origin in own or origin in self._settings.origins

    def _dress(self, answer: MutableHeaders, asked: Headers, request_id: str) -> None:
        for name, value in SECURITY.items():
            answer[name] = value
        answer["x-request-id"] = request_id
        origin = asked.get("origin")
        if origin is not None and origin.lower() in self._settings.origins:
            answer["access-control-allow-origin"] = origin
            answer["access-control-expose-headers"] = EXPOSED
            answer["cross-origin-resource-policy"] = "cross-origin"
            answer.add_vary_header("Origin")


def answer(error: Refused, request_id: str, metrics: Metrics) -> JSONResponse:
    """Response to a refused request."""
    metrics.rejected(error.reason)
    content = {"error": error.message, "request_id": request_id}
    return JSONResponse(content, status_code=error.status, headers=error.headers)


def _bug(request_id: str) -> JSONResponse:
    content = {"error": "an error of the server", "request_id": request_id}
    return JSONResponse(content, status_code=500)


def _preflight() -> Response:
    headers = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, x-api-key, x-request-id",
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=headers)


def _key(headers: Headers) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return given.encode("latin-1", errors="replace")


def _log(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    client: Any = scope.get("client") or ("", 0)
    line = {
        "id": request_id,
        "client": client[0],
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "ms": round(1000 * seconds, 1),
    }
    requests.info("request", extra={"fields": line})
