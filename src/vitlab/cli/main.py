"""The `vitlab` command: exit code 0, 2 for the user's mistake (one line), 1 for ours."""

import atexit
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from vitlab import __version__
from vitlab.cli.benchmark import benchmark
from vitlab.cli.convert import convert
from vitlab.cli.data import data
from vitlab.cli.demo import demo
from vitlab.cli.doctor import doctor
from vitlab.cli.evaluate import evaluate
from vitlab.cli.experiment import experiment
from vitlab.cli.explain import explain
from vitlab.cli.explore import explore
from vitlab.cli.export import export
from vitlab.cli.features import features, fewshot
from vitlab.cli.figures import figures
from vitlab.cli.finetune import finetune
from vitlab.cli.hub import pull, push
from vitlab.cli.info import info
from vitlab.cli.models import models, summary
from vitlab.cli.output import (
    EscapingFormatter,
    escape_messages,
    flush_or_discard,
    flush_output,
    open_closed_streams,
    print_line,
    print_text,
    shortage_in,
)
from vitlab.cli.predict import predict
from vitlab.cli.pretrain import pretrain
from vitlab.cli.serve import serve
from vitlab.cli.similar import similar
from vitlab.cli.train import TrainCommand, train
from vitlab.cli.walkthrough import walkthrough
from vitlab.cli.weights import weights
from vitlab.cli.zeroshot import zeroshot
from vitlab.errors import ConfigError, Elsewhere, VitlabError
from vitlab.machine.world import check_alone, close_world, launched, rank_and_size

PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "First steps": (demo, doctor),
    "Models and weights": (models, summary, weights, info, convert),
    "Data": (data,),
    "Train": (train, finetune, pretrain, experiment),
    "Predict and evaluate": (predict, zeroshot, evaluate, features, similar, fewshot, benchmark),
    "Understand": (explore, explain, figures, walkthrough),
    "Export and share": (export, serve, push, pull),
}
"""Commands in the order of `vitlab --help`."""
CLASSES: dict[Callable[..., None], type[TyperCommand]] = {train: TrainCommand}
"""Commands with more help than their docstring and options."""
SEVERAL = (
    *("train", "finetune", "pretrain", "experiment"),
    *("evaluate", "predict", "features", "doctor"),
)
"""Commands that several processes may work on."""
SEVERAL_MET = "vitlab.machine.processes"
"""Module that is imported when several processes meet."""
LOST = re.compile(r"gloo|nccl|\bpeer\b|socket|TCPStore", re.IGNORECASE)
"""Messages of torch about a process that does not answer."""


def _name(command: Callable[..., None] | typer.Typer) -> str:
    return str(command.info.name if isinstance(command, typer.Typer) else command.__name__)


class _Commands(TyperGroup):
    """Lists commands as in PANELS; Typer itself puts those with subcommands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [_name(command) for commands in PANELS.values() for command in commands]


app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel, cls=CLASSES.get(command))(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"vitlab {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def vitlab(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Build, train, understand and export Vision Transformers, with weights of many formats."""
    if context.invoked_subcommand is None:
        print_text(context.get_help())
    elif context.invoked_subcommand not in SEVERAL:
        check_alone(context.invoked_subcommand, f"valid for several: {', '.join(SEVERAL)}")


def main() -> None:
    """Entry point of the console script."""
    printable = sys.stdout is not None
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may know less
    escape_messages()
    if not printable:
        sys.exit(
            _fail("standard output is closed; valid: a terminal, a pipe, a file, /dev/null", 2)
        )
    if another_rank() is not None:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    code = run(sys.argv[1:])
    if SEVERAL_MET in sys.modules:
        leave(code)
    sys.exit(code)


def leave(code: int) -> NoReturn:
    """End one of several processes without the clean-up of torch.

    Threads of torch that exchanged values with other processes abort now and then when Python's
    objects are taken down: a run that has ended well would end with a signal.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        flush_or_discard(stream)
    os._exit(code)


def another_rank() -> int | None:
    """Rank of one of several processes that is not the first, the only one that prints."""
    with suppress(ConfigError):  # which `run` reports
        return rank_and_size()[0] or None
    return None


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; a mistake is one line on stderr."""
    try:
        with _warnings():
            code = app(args=list(arguments), prog_name="vitlab", standalone_mode=False)
        close_world()
        flush_output()
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        flush_or_discard(sys.stdout)
        return 1
    except Exception as error:
        return _report(error)
    return code if isinstance(code, int) else 0


@contextmanager
def _warnings() -> Iterator[None]:
    """Print the library's warnings on stderr, each once: a command may load weights twice."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in seen
        seen.add(text)
        return new

    logger, handler = logging.getLogger("vitlab"), logging.StreamHandler()
    handler.setFormatter(EscapingFormatter())
    handler.addFilter(is_new)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _report(error: Exception) -> int:
    """Print an error on one line and return the exit code."""
    flush_or_discard(sys.stdout)
    if (shortage := shortage_in(error)) is not None:
        return _fail(shortage, 2)
    if isinstance(error, Elsewhere):  # one line is enough
        return 2
    if isinstance(error, VitlabError):
        return _fail(str(error), 2)
    if launched() and isinstance(error, RuntimeError) and LOST.search(str(error)):
        return _fail("another process of this command ended or cannot be reached", 1)
    if hasattr(error, "format_message"):  # Typer's own: a wrong option, argument or command
        return _fail(error.format_message(), 2)
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}", 2)
    if os.environ.get("VITLAB_DEBUG") == "1":
        print_text(traceback.format_exc(), end="", file=sys.stderr)
    message = " ".join(str(error).split())  # other libraries write paragraphs
    kind = type(error).__name__
    return _fail(f"{kind}: {message} (a bug: report it with the output of VITLAB_DEBUG=1)", 1)


def _fail(message: str, code: int) -> int:
    rank = another_rank()
    stream = sys.stderr if rank is None else sys.__stderr__
    with suppress(OSError):  # standard error may be closed, full or a broken pipe
        process = [] if rank is None else [f"[process {rank}]"]
        print_line(*process, "error:", message.strip(), file=stream)
    flush_or_discard(sys.stderr)
    return code
