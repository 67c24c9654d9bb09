"""The OpenAPI document of the interface.

It is written by hand: a body is bytes, a form or JSON, so that there are no request models which a
framework could derive it from. Tests compare it with the routes, and send requests made from it.
"""

from typing import Any

from vitlab import __version__
from vitlab.serve.parameters import FORMATS, LONGEST, MOST_TOP

ERRORS = {
    "400": "An image that cannot be read.",
    "401": "No valid key.",
    "403": "A Host or Origin that is not allowed.",
    "404": "Another model's name.",
    "408": "The deadline has passed.",
    "413": "Too many bytes, pixels or images.",
    "415": "A format that is not decoded, or an animation.",
    "422": "A parameter or body that is not valid, or an answer that would be too long.",
    "429": "Too much work is waiting; Retry-After has the seconds to wait.",
    "500": "An error of the server, which its log describes by the id of the request.",
    "501": "The model is an exported file, which only predicts.",
    "503": "The server is starting or shutting down, or computes no more.",
}
NOTE = "Other methods of these paths are answered with 405, other paths with 404; none redirects."
WORK = ("400", "401", "403", "408", "413", "415", "422", "429", "500", "503")
"""Errors of requests with images."""
FACTS = ("401", "403", "500")
"""Errors of requests without images."""
INSIDE = (*WORK, "501")
"""Errors of requests that need torch."""

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
GRID: Schema = {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
MAYBE_WHOLE: Schema = {"type": ["integer", "null"]}
NUMBERS: Schema = {"type": "array", "description": "Numbers, nested as the shape."}
PAIRS: Schema = {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}
BINARY: Schema = {"type": "string", "format": "binary"}
TOKEN: Schema = {"type": "string", "pattern": "^[0-9]{1,6},[0-9]{1,6}$"}


def document(model: str) -> dict[str, Any]:
    """OpenAPI 3.1 description of every route for a model of this name."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "vitlab serve", "version": __version__, "description": NOTE},
        "paths": _work() | _facts() | _adapters(model),
    }


def _work() -> dict[str, Any]:
    top = {"type": "integer", "minimum": 1, "maximum": MOST_TOP, "default": 5}
    result = _object(
        ("label", "probability", "top", "error"),
        label=MAYBE_TEXT,
        probability=MAYBE_NUMBER,
        value=MAYBE_NUMBER,
        top=PAIRS,
        error=MAYBE_TEXT,
    )
    maps = _object(("error",), map=NUMBERS, grid=GRID, top=PAIRS, error=MAYBE_TEXT)
    weights = _object(("error",), weights=NUMBERS, grid=GRID, prefix=WHOLE, error=MAYBE_TEXT)
    place = {"layer": WHOLE, "head": WHOLE, "token": TOKEN}
    explained = _object(("results",), results=_list(maps))
    png = {"image/png": {"schema": BINARY}}
    return {
        "/classify": _post("Labels of images.", {"top": top}, _results(result), WORK),
        "/features": _post(
            "Features of images.",
            {
                "kind": {"type": "string", "enum": ["pooled", "embedding", "cls", "patches"]},
                "layer": WHOLE,
            },
            _results(_object(("error",), features=NUMBERS, error=MAYBE_TEXT)),
            INSIDE,
        ),
        "/explain": _post(
            "Maps of what a prediction is based on.",
            {
                "method": TEXT,
                "class": {"type": "string", "maxLength": LONGEST},
                **place,
                "each": {"type": "string", "enum": ["layer", "head"]},
                "format": {"type": "string", "enum": [*FORMATS]},
            },
            {"application/json": {"schema": explained}, **png},
            INSIDE,
        ),
        "/attention": _post("Attention weights of a block.", place, _results(weights), INSIDE),
    }


def _facts() -> dict[str, Any]:
    text = {"description": "Text.", "content": {"text/plain": {"schema": TEXT}}}
    metrics = {"summary": "Metrics for Prometheus.", "responses": {"200": text, **_errors(FACTS)}}
    return {
        "/model": _get("Labels, preprocessing, metrics, licence and limits."),
        "/health/live": _get("The process works; with 503, only a restart helps.", ("503",)),
        "/health/ready": _get("Requests are accepted.", ("503",)),
        "/metrics": {"get": metrics},
        "/openapi.json": _get("This document."),
    }


def _adapters(model: str) -> dict[str, Any]:
    inputs = _object(("inputs",), inputs=TEXT, parameters={"type": "object"})
    scores = _list(_object(("label", "score"), label=TEXT, score={"type": "number"}))
    tensor = _object(
        ("name", "datatype", "shape", "data"),
        name=TEXT,
        datatype={"const": "BYTES"},
        shape=_list(WHOLE),
        data=_list(TEXT),
    )
    request = _object(("inputs",), id=TEXT, inputs={**_list(tensor), "minItems": 1, "maxItems": 1})
    answer = _object(("model_name", "outputs"), model_name=TEXT, id=TEXT, outputs=_list({}))
    known = {"type": "string", "enum": [model]}
    name = [{"name": "name", "in": "path", "required": True, "schema": known}]
    page = {"description": "The page.", "content": {"text/html": {}}}
    return {
        "/": _operation(
            "Hugging Face image-classification.",
            {"image/*": {"schema": BINARY}, "application/json": {"schema": inputs}},
            {"application/json": {"schema": scores}},
            WORK,
        )
        | {"get": {"summary": "The page.", "responses": {"200": page, **_errors(FACTS)}}},
        "/v2": _get("Server metadata of the Open Inference Protocol."),
        "/v2/health/live": _get("The process works; with 503, only a restart helps.", ("503",)),
        "/v2/health/ready": _get("Requests are accepted.", ("503",)),
        "/v2/models/{name}": _get("Model metadata.", (*FACTS, "404")) | {"parameters": name},
        "/v2/models/{name}/ready": _get("The model is ready.", (*FACTS, "404", "503"))
        | {"parameters": name},
        "/v2/models/{name}/infer": _operation(
            "Predictions in the Open Inference Protocol.",
            {"application/json": {"schema": request}},
            {"application/json": {"schema": answer}},
            (*WORK, "404"),
        )
        | {"parameters": name},
    }


def _post(
    summary: str, query: dict[str, Schema], answer: dict[str, Any], errors: tuple[str, ...]
) -> dict[str, Any]:
    images = _object(("images",), images={**_list(TEXT), "minItems": 1})
    files = {"type": "object", "additionalProperties": BINARY}
    body = {
        "image/*": {"schema": BINARY},
        "multipart/form-data": {"schema": files},
        "application/json": {"schema": images},
    }
    found = _operation(summary, body, answer, errors)
    found["post"]["parameters"] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in query.items()
    ]
    return found


def _operation(
    summary: str, body: dict[str, Any], answer: dict[str, Any], errors: tuple[str, ...]
) -> dict[str, Any]:
    success = {"description": "One result for each image, in order.", "content": answer}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": body},
            "responses": {"200": success, **_errors(errors)},
        }
    }


def _get(summary: str, errors: tuple[str, ...] = FACTS) -> dict[str, Any]:
    found = _json("Facts.", {"type": "object"})
    return {"get": {"summary": summary, "responses": {"200": found, **_errors(errors)}}}


def _results(result: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": _object(("results",), results=_list(result))}}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "required": [*required], "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _json(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(statuses: tuple[str, ...]) -> dict[str, Any]:
    schema = _object(("error", "request_id"), error=TEXT, request_id=TEXT)
    return {status: _json(ERRORS[status], schema) for status in statuses}
