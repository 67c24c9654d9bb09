"""Protocols of existing clients: Hugging Face `image-classification`, Open Inference Protocol v2.

Each adapter only translates: images are admitted, decoded and computed as those of `/classify`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.predictor import shortest
from vitlab.objectives.objective import objective_of
from vitlab.serve.bodies import from_base64, is_json, json_images, json_of
from vitlab.serve.settings import Refused

INPUT, OUTPUT = "images", "predictions"


def huggingface_request(body: bytes, kind: str) -> tuple[bytes, dict[str, Any]]:
    """Image and parameters: the body itself, or `inputs` and `parameters` of JSON."""
    if not is_json(kind):
        return body, {}
    given = json_of(body)
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refused(422, "body", "parameters is no object; valid: {...}")
    return from_base64(given.get("inputs")), parameters


def check_parameters(parameters: dict[str, Any], task: str, *, most: int) -> int:
    """Number of labels; Refused for another activation than the model's."""
    top = parameters.get("top_k")
    top = 5 if top is None else top
    if type(top) is not int or not 1 <= top <= most:
        raise Refused(422, "parameter", f"top_k {str(top)[:20]!r}; valid: 1 to {most}")
    activation, valid = parameters.get("function_to_apply"), objective_of(task).activation
    if activation is not None and activation != valid:
        found = str(activation)[:20]
        raise Refused(422, "parameter", f"function_to_apply {found!r}; valid: {valid}")
    return top


def huggingface_answer(row: NDArray[np.float32], labels: Sequence[str], top: int) -> Any:
    """Labels with scores, the highest first."""
    order = np.argsort(-row, kind="stable")[:top].tolist()
    return [{"label": labels[number], "score": shortest(row[number])} for number in order]


def inference_images(body: bytes, *, most: int) -> tuple[list[bytes], str | None]:
    """Images of an `infer` request, base64 in a tensor of BYTES, and the id of the request."""
    given = json_of(body)
    inputs, name = given.get("inputs"), given.get("id")
    valid = f'valid: one input {{"name": "{INPUT}", "datatype": "BYTES", "shape": [N], "data": []}}'
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refused(422, "body", f"no single input; {valid}")
    tensor = inputs[0]
    data = tensor.get("data")
    if tensor.get("datatype") != "BYTES" or not isinstance(data, list):
        raise Refused(422, "body", f"an input that is not BYTES; {valid}")
    if tensor.get("shape") not in ([len(data)], [len(data), 1]):
        raise Refused(422, "body", f"a shape that is not [{len(data)}]; {valid}")
    if name is not None and not isinstance(name, str):
        raise Refused(422, "body", "an id that is no text")
    return json_images(data, most=most), name


def inference_answer(rows: NDArray[np.float32], model: str, name: str | None) -> dict[str, Any]:
    """Predictions [N, classes] as a tensor of FP32."""
    output = {
        "name": OUTPUT,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.astype(str).astype(np.float64).reshape(-1).tolist(),  # as `shortest`
    }
    return {"model_name": model, "outputs": [output], **({} if name is None else {"id": name})}


def inference_metadata(model: str, classes: int) -> dict[str, Any]:
    """Names, types and shapes of the input and the output."""
    return {
        "name": model,
        "platform": "vitlab",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, classes]}],
    }
