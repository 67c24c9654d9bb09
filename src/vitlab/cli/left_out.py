"""The images that a command could not read, named on standard error."""

import sys
from collections.abc import Mapping

from vitlab.cli.output import print_line

SHOWN = 20
"""Images that are named; --json has all."""


def print_left_out(broken: Mapping[str, str]) -> None:
    """A line for each, with the reason."""
    for path, reason in list(broken.items())[:SHOWN]:
        print_line(f"left out: {path}: {reason}", file=sys.stderr)
    if len(broken) > SHOWN:
        print_line(f"left out: {len(broken) - SHOWN:,} more; --json has all", file=sys.stderr)
