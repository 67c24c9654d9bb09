"""What running a command came to, for tests of the command line."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def mistake(self) -> str:
        """The one line that a user's mistake must be, and nothing else."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("error: "), self
        assert self.err.find("\n") == len(self.err) - 1, self
        return self.err.removeprefix("error: ").removesuffix("\n")


Command = Callable[..., Outcome]
