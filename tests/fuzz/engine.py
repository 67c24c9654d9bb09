"""Runs a target on mutated files and collects what breaks the rules.

A target succeeds, or raises a `VitlabError` or an `OSError` that names its file (the command line
turns both into exit code 2). Anything else is a failure: another exception, a case that takes too
long, a file written outside of the case's folder, or a program that is started.
"""

import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutation import MUTATIONS

SECONDS = 10.0
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTING = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn")
CHANGING = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.symlink",
    "os.link",
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One parser, reached by a public function or command."""

    name: str
    make: Callable[[Path], None]
    """Write valid files to a folder."""
    run: Callable[[Path], None]
    """Read the files; a valid set of them must succeed."""
    files: dict[str, str]
    """Files to mutate, each with the kind of mutation."""
    cases: int
    """Number of cases in the default suite: about a second."""
    short: bool = True
    """Part of the default suite; False: of the slow suite only."""
    programs: tuple[str, ...] = ()
    """Programs that may be started."""
    seconds: float = SECONDS
    """Processor time that one case may take."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that broke a rule."""

    target: str
    seed: int
    case: int
    error: str
    site: str
    """The innermost lines of code, which tell failures apart."""
    reproducer: Path

    def __str__(self) -> str:
        return (
            f"{self.target}, seed {self.seed}, case {self.case}: {self.error[:300]}\n"
            f"    at {self.site}\n    files: {self.reproducer}"
        )


class Crashed(Exception):
    """A command that ended with another code than 0 or 2."""


class TooSlow(BaseException):
    """A case over its limit; not an Exception, so that nothing takes it for damage."""


@dataclass
class _Watch:
    """Events of the interpreter while a case runs."""

    folder: str = ""
    programs: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = arguments
            written = bool(set(mode) & set("wxa+")) if isinstance(mode, str) else flags & WRITING
            if written:
                self._path(event, path)
        elif event in CHANGING:
            self._path(event, arguments[0])
        elif event in STARTING:
            program = os.path.basename(str(arguments[0]))
            if program not in self.programs:
                self.seen.append(f"{event} {program}")

    def _path(self, event: str, path: Any) -> None:
        if not isinstance(path, (str, bytes)):
            return
        name = os.path.realpath(os.fsdecode(path))
        if name.startswith((self.folder, "/dev/")) or "__pycache__" in name:
            return
        self.seen.append(f"{event} {name}")


_WATCH = _Watch()
_HOOKED: list[bool] = []


@contextmanager
def _watching(folder: Path, programs: tuple[str, ...]) -> Iterator[list[str]]:
    if not _HOOKED:
        sys.addaudithook(_WATCH.hook)
        _HOOKED.append(True)
    _WATCH.folder, _WATCH.programs, _WATCH.seen = os.path.realpath(folder), programs, []
    try:
        yield _WATCH.seen
    finally:
        _WATCH.folder = ""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt after so much processor time, which other processes do not use up."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow(f"over {seconds:g} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fuzz(
    target: Target, *, folder: Path, seed: int, cases: int, first: int = 0, most: int = 10
) -> list[Failure]:
    """Run cases `first` to `first + cases`; the failures, one for each place in the code."""
    made, work, kept = folder / "made", folder / "work", folder / "failures"
    made.mkdir(parents=True)
    failures: dict[str, Failure] = {}
    with warnings.catch_warnings(), _in(folder):
        warnings.simplefilter("ignore")
        target.make(made)
        _fresh(made, work)
        target.run(work)
        for case in range(first, first + cases):
            _fresh(made, work)
            mutate_case(target, work, seed=seed, case=case)
            found = _try(target, work, folder)
            if found is None or found[1] in failures:
                continue
            error, site = found
            place = kept / f"{target.name}-{seed}-{case}"
            _fresh(made, place)
            mutate_case(target, place, seed=seed, case=case)
            failures[site] = Failure(
                target=target.name, seed=seed, case=case, error=error, site=site, reproducer=place
            )
            if len(failures) >= most:
                break
    return list(failures.values())


def mutate_case(target: Target, folder: Path, *, seed: int, case: int) -> None:
    """Change one file of a folder; target, seed and case decide which and how."""
    random = Random(f"{target.name} {seed} {case}")
    name = random.choice(list(target.files))
    path = folder / name
    path.write_bytes(MUTATIONS[target.files[name]](path.read_bytes(), random))


def _try(target: Target, work: Path, folder: Path) -> tuple[str, str] | None:
    from vitlab import VitlabError

    with _watching(folder, target.programs) as seen:
        try:
            with _limited(target.seconds):
                target.run(work)
        except VitlabError:
            pass
        except Crashed as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            places = [line for line in lines if line.startswith("File ")]
            return lines[-1] if lines else "no message", " < ".join(places[-1:-4:-1])
        except (Exception, TooSlow) as error:
            if not (isinstance(error, OSError) and error.filename is not None):
                return f"{type(error).__name__}: {error}", _site(error)
    return ("; ".join(seen[:3]), "written or started") if seen else None


def _site(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, (RecursionError, TooSlow)):
        ours = [frame for frame in frames if f"{os.sep}vitlab{os.sep}" in frame.filename]
        frames = traceback.StackSummary.from_list(ours[:8])
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-1:-5:-1])


def _fresh(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
