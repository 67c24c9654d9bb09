"""The settings of a benchmark, checked."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitlab.errors import InputError
from vitlab.jobs.benchmark.prepare import DEFAULT_ENGINE, MERGING, check_engine, is_exported
from vitlab.machine.device import cores

Watch = Callable[[str, int, int], None]
"""Progress callback: the current work, steps done and steps in all."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Models, engines, batch sizes and rounds of a benchmark."""

    models: tuple[str, ...]
    engines: tuple[str, ...] | None = None
    """None: `auto`, the default of every command; torch where tokens are merged."""
    batches: tuple[int, ...] = (1, 8)
    merge_tokens: tuple[int, ...] = (0,)
    rounds: int = 12
    seconds: float = 0.5
    """Approximate length of a turn."""
    threads: int | None = None
    """None: OMP_NUM_THREADS, or as many as this process may use."""
    seed: int = 0
    """Seed of the order of turns."""
    preprocessing: dict[str, Any] | None = None
    """Preprocessing of the weights, as in `vitlab.load_weights`; None: their own."""

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("merge_tokens", 0)):
            numbers = getattr(self, name)
            if not numbers or min(numbers) < least:
                raise InputError(f"{name} {list(numbers)}; valid: numbers from {least} on")
        if self.rounds < 1 or not 0 < self.seconds < math.inf:
            raise InputError(
                f"rounds {self.rounds} of {self.seconds} seconds; valid: at least 1, above 0"
            )
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads {self.threads}; valid: at least 1")
        lists = {
            "models": self.models,
            "engines": self.runs_in,
            "batches": self.batches,
            "merge_tokens": self.merge_tokens,
        }
        for what in ("models", "engines"):
            if not lists[what]:
                raise InputError(f"no {what}; valid: at least one")
        for what, chosen in lists.items():
            if len(set(chosen)) < len(chosen):
                raise InputError(f"{what} {', '.join(map(str, chosen))}: one of them comes twice")
        self._check_merging()
        if all(map(is_exported, self.models)):
            self._check_exported()
        if self.preprocessing is not None:
            for file in filter(is_exported, self.models):
                raise InputError(f"{file} is fixed: preprocessing cannot be changed any more")
        for engine in self.runs_in:
            check_engine(engine)

    def _check_merging(self) -> None:
        """Raise if no engine merges tokens, or the reference would merge where others cannot."""
        first = self.merge_tokens[0]
        if any(self.merge_tokens) and not set(self.runs_in) & set(MERGING):
            raise InputError(
                f"merge_tokens {max(self.merge_tokens)} needs the engine torch, or another of "
                f"{', '.join(MERGING[1:])}; found {', '.join(self.runs_in)}"
            )
        if first and set(self.runs_in) - set(MERGING):
            raise InputError(
                f"merge_tokens {first} first with engines {', '.join(self.runs_in)}; valid: 0 first"
            )

    def _check_exported(self) -> None:
        """Raise for options that exported files alone cannot have."""
        file = self.models[0]
        if any(self.merge_tokens):
            count = max(self.merge_tokens)
            raise InputError(
                f"merge_tokens {count}: {file} is as it was exported; "
                f"`vitlab export MODEL --merge-tokens {count} --output FILE` writes one that merges"
            )

    @property
    def runs_in(self) -> tuple[str, ...]:
        """The engines."""
        if self.engines is not None:
            return self.engines
        return MERGING[:1] if any(self.merge_tokens) else (DEFAULT_ENGINE,)

    @property
    def cores(self) -> int:
        """Threads of each contestant."""
        return self.threads or cores()
