"""A server in LitServe for `serve.py`, as its documentation shows: `... MODEL PORT BATCH`.

One worker process decodes and computes; with a BATCH above 1, images wait up to 10 ms for others.
"""

import sys
from base64 import b64decode
from typing import Any

from litserve import LitAPI, LitServer
from served_model import DEADLINE, Model

WAIT = 0.01


class Api(LitAPI):
    """One image at a time."""

    def setup(self, device: str) -> None:
        self.model = Model(sys.argv[1])

    def decode_request(self, request: dict[str, str]) -> Any:
        return self.model.decode(b64decode(request["image"]))

    def predict(self, pixels: Any) -> Any:
        return self.model.compute([pixels])[0]

    def encode_response(self, row: Any) -> dict[str, Any]:
        return self.model.answer(row)


class BatchApi(Api):
    """Batches of images."""

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, pixels: list[Any]) -> Any:
        return self.model.compute(pixels)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)


def build(batch: int) -> LitServer:
    """The server."""
    if batch == 1:
        api = Api(api_path="/classify")
    else:
        api = BatchApi(api_path="/classify", max_batch_size=batch, batch_timeout=WAIT)
    return LitServer(api, accelerator="cpu", timeout=DEADLINE, workers_per_device=1)


if __name__ == "__main__":
    server = build(int(sys.argv[3]))
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
