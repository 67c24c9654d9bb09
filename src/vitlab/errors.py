"""Every mistake a user can make: each message gives the value found and the valid choices."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class VitlabError(ValueError):
    """A mistake of the user's; the command line prints its one line and exits with code 2."""

    together = False
    """True if every process of a command raises it at the same point."""


class ConfigError(VitlabError):
    """A configuration that describes no model or run."""


class UnknownName(VitlabError):
    """A name that nothing is registered under."""

    def __init__(self, kind: str, found: str, choices: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {found!r}; {suggest(found, choices)}")


class InputError(VitlabError):
    """Images that the model cannot take."""


class TooLarge(InputError):
    """An image of more pixels than may be decoded."""


class SeveralFrames(InputError):
    """A file of several frames or pages: nothing says which of them is meant."""


class NotFinite(InputError):
    """Outputs of a model that are not finite numbers."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}; valid: a model whose weights have not diverged, "
            f"in a precision that holds its numbers"
        )
        self.found = found


class FileError(VitlabError):
    """A file that cannot be written."""


class DataError(VitlabError):
    """Data that is not there, cannot be fetched, or is not what it should be."""


class WeightsError(VitlabError):
    """A weight file that cannot be read, or that does not fit the model."""


class HubError(VitlabError):
    """A hub that cannot be reached or refuses, or a repository that holds no such model."""


class PreprocessingUnknown(VitlabError):
    """Nothing says how images must be prepared for these weights."""


class Unsupported(VitlabError):
    """A request that this model cannot serve."""


class Diverged(VitlabError):
    """Training that left the finite numbers."""

    together = True  # losses and gradients are those of all processes

    def __init__(self, step: int, found: str) -> None:
        super().__init__(
            f"diverged at step {step}: {found}; checkpoints of earlier steps are intact: try a "
            f"lower learning rate (--set optimizer.lr=…), "
            f"a longer warm-up (--set schedule.warmup=…) or --set model.qk_norm=true"
        )


class OutOfMemory(VitlabError):
    """An update that needs more memory than there is."""

    def __init__(self, batch_size: int, advice: str) -> None:
        super().__init__(f"not enough memory for batches of {batch_size} images; {advice}")


class Unreachable(VitlabError):
    """Other processes of a command that do not answer."""


class Elsewhere(VitlabError):
    """A mistake that the first of several processes reports."""

    together = True


class Interrupted(Exception):
    """An interrupted run that has saved its state; not an error."""

    def __init__(self, signal: int, step: int, steps: int) -> None:
        super().__init__(f"stopped after step {step} of {steps}; the state is saved")
        self.signal = signal


class Disagrees(Exception):
    """An exported model whose answers are not those of the model; no mistake of the user's."""


class ExperimentStopped(Exception):
    """An interrupted experiment; finished and started runs are kept."""

    def __init__(self, signal: int, done: int, total: int) -> None:
        super().__init__(f"stopped after {done} of {total} trainings; the state is saved")
        self.signal = signal


class MissingExtra(VitlabError):
    """An optional dependency that is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'vitlab[{extra}]'")


@contextmanager
def damage_as(kind: type[VitlabError], what: str) -> Iterator[None]:
    """Raise `kind` for every exception of another library that parses foreign bytes.

    For the calls of that library alone: a fault of our own must not look like damage.
    """
    try:
        yield
    except (VitlabError, MemoryError):
        raise
    except Exception as error:
        raise kind(f"{what} ({one_line(error)})") from error


def one_line(error: BaseException, limit: int = 160) -> str:
    """The message of an exception in one line of bounded length, or its name."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def suggest(found: str, choices: Iterable[str]) -> str:
    """`did you mean …?` when something is near, else the valid choices."""
    known = sorted(choices)
    meant = near(found, known)
    return f"did you mean {', '.join(meant)}?" if meant else f"valid: {', '.join(known)}"


def near(found: str, choices: Iterable[str]) -> list[str]:
    """The choices that look like what was found, the nearest first; at most a few."""
    return difflib.get_close_matches(found, sorted(choices), n=4, cutoff=0.55)
