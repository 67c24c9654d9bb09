"""What the benchmarks share: where their contestants are found, and a line about how it goes."""

import sys
import time
from functools import partial
from pathlib import Path

from vitlab.timing import referee

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SEARCHED = (ROOT / "tests", HERE)
"""Where contestants are imported from, beside the package."""

compete = partial(referee.compete, paths=SEARCHED)
Process = partial(referee.Process, paths=SEARCHED)


class Progress:
    """One line on a terminal: what is done, and how long the rest will take."""

    def __init__(self, settings: int) -> None:
        self.settings = settings
        self.begun = 0
        self.label = ""
        self._started = time.monotonic()

    def start(self, label: str) -> None:
        """Name the setting that begins."""
        self.label = label
        self.begun += 1
        self._show(f"{label}: starting")

    def round(self, done: int, rounds: int) -> None:
        """Count a round of the current setting."""
        if not done:
            self._started = time.monotonic()
            self._show(f"{self.label}: first round")
            return
        left = (time.monotonic() - self._started) / done * (rounds - done)
        self._show(f"{self.label}: round {done} of {rounds}, {left:.0f} s left of this setting")

    def _show(self, text: str) -> None:
        end = "" if sys.stderr.isatty() else "\n"
        start = "\r\033[K" if sys.stderr.isatty() else ""
        line = f"{start}[{self.begun} of {self.settings}] {text}"
        print(line, end=end, file=sys.stderr, flush=True)
