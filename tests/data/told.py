"""Somebody who remembers what was told of a download."""


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def advance(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
