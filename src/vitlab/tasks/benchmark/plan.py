"""What a benchmark is asked to measure."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from vitlab.errors import InputError
from vitlab.inference.peers import check_peer
from vitlab.tasks.benchmark.contestants import check_engine

Watch = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many are."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured."""

    models: tuple[str, ...]
    engines: tuple[str, ...] = ("torch",)
    batches: tuple[int, ...] = (1, 8)
    against: tuple[str, ...] = ()
    merge_tokens: tuple[int, ...] = (0,)
    rounds: int = 12
    seconds: float = 0.5
    """Length of a turn, about."""
    threads: int | None = None
    """None: as many as this process may use."""
    seed: int = 0
    """Of the order of turns."""

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("merge_tokens", 0)):
            numbers = getattr(self, name)
            if not numbers or min(numbers) < least:
                raise InputError(f"{name} {list(numbers)}; valid: numbers from {least} on")
        if self.rounds < 1 or self.seconds <= 0:
            raise InputError(
                f"rounds {self.rounds} of {self.seconds} seconds; valid: at least 1, above 0"
            )
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads {self.threads}; valid: at least 1")
        for what in ("models", "engines"):
            if not getattr(self, what):
                raise InputError(f"no {what}; valid: at least one")
        for what in ("models", "engines", "batches", "against", "merge_tokens"):
            chosen = getattr(self, what)
            if len(set(chosen)) < len(chosen):
                raise InputError(f"{what} {', '.join(map(str, chosen))}: one of them comes twice")
        if self.against and self.merge_tokens[0]:
            raise InputError(
                f"merge_tokens {self.merge_tokens[0]} against {self.against[0]}: libraries merge "
                f"none; valid: 0 first"
            )
        if self.merge_tokens[0] and self.engines != ("torch",):
            raise InputError(
                f"merge_tokens {self.merge_tokens[0]} first with engines "
                f"{', '.join(self.engines)}; valid: the engine torch alone, or 0 first"
            )
        for engine in self.engines:
            check_engine(engine)
        for peer in self.against:
            check_peer(peer)

    @property
    def cores(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))
