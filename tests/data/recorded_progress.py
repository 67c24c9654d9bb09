"""A progress that records the notes and steps of a download."""


class RecordedProgress:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def advance(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
