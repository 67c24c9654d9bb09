"""The kind of label that images have, as one word."""

Task = str
"""Name of a registered objective: `single-label`, `multi-label`, `regression`, or a user's own."""
THRESHOLD = 0.5
"""Probability from which on a multi-label model predicts a label."""
TEMPLATE = "a photo of a {}"
"""Text of a label in zero-shot classification, in which the label replaces the braces."""
