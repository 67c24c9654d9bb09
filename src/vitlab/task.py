"""What a model is asked about an image: which class, which labels, or which values."""

from typing import Literal

Task = Literal["single-label", "multi-label", "regression"]
THRESHOLD = 0.5
"""Probability from which on a label of a multi-label model is said to be present."""
