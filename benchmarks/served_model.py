"""What the servers that `serve.py` compares share: decoding, computing and the answer.

All compute the same ONNX file with the engine of `vitlab predict` and prepare images with the same
code.
"""

import io
from typing import Any

TOP = 5
DEADLINE = 10.0
"""Seconds after which a request is lost: nobody waits for it any longer."""


class Model:
    """Image bytes to labels: what all servers share."""

    def __init__(self, place: str) -> None:
        from vitlab.classify.classifier import open_classifier

        self._predictor = open_classifier(place, engine="onnxruntime").predictor()

    def decode(self, content: bytes) -> Any:
        """Pixels [C, H, W]."""
        from vitlab.images.pixels import read_image

        return read_image(io.BytesIO(content), self._predictor.preprocessing)

    def compute(self, pixels: Any) -> Any:
        """Probabilities [B, classes]."""
        import numpy as np

        return self._predictor.engine.predict(np.stack(pixels))

    def answer(self, row: Any) -> dict[str, Any]:
        """Record of one image."""
        found = self._predictor.prediction(row, top=TOP)
        return {"results": [{"label": found.label, "top": found.top}]}
