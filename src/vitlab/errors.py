"""Every mistake a user can make: each message gives the value found and the valid choices."""

import difflib
from collections.abc import Iterable


class VitlabError(ValueError):
    """A mistake of the user's; the command line prints its one line and exits with code 2."""


class ConfigError(VitlabError):
    """A configuration that describes no model or run."""


class UnknownName(VitlabError):
    """A name that nothing is registered under."""

    def __init__(self, kind: str, found: str, choices: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {found!r}; {suggest(found, choices)}")


class InputError(VitlabError):
    """Images that the model cannot take."""


class WeightsError(VitlabError):
    """A weight file that cannot be read, or that does not fit the model."""


class PreprocessingUnknown(VitlabError):
    """Nothing says how images must be prepared for these weights."""


class MissingExtra(VitlabError):
    """An optional dependency that is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'vitlab[{extra}]'")


def suggest(found: str, choices: Iterable[str]) -> str:
    """`did you mean …?` when something is near, else the valid choices."""
    known = sorted(choices)
    near = difflib.get_close_matches(found, known, n=4, cutoff=0.55)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"valid: {', '.join(known)}"
