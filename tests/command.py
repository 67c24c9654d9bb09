"""What running a command came to, for tests of the command line, and scripts as modules."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


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


def script(name: str) -> Any:
    """The module of a file in `scripts` that has no ending; nothing of it is run."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return module


Command = Callable[..., Outcome]
