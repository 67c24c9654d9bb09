"""The frame around every command: help, version, and what becomes of errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import vitlab
from command import Command, Outcome
from vitlab.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "from vitlab.cli.main import main; main()"


def process(*arguments: str) -> "subprocess.Popen[str]":
    """`vitlab` as the shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next command line end in this error."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)


def test_without_a_command_the_help_is_shown(command: Command) -> None:
    bare, helped = command(), command("--help")
    assert (bare.code, helped.code, helped.err) == (0, 0, "")
    assert "Usage: vitlab" in bare.out
    assert "summary" in helped.out


GROUPED = {
    "First steps": "demo doctor",
    "Models and weights": "models summary weights info convert",
    "Data": "data",
    "Train": "train finetune pretrain experiment",
    "Predict and evaluate": "predict zeroshot evaluate features similar fewshot benchmark",
    "Understand": "explore explain figures walkthrough",
    "Export and share": "export serve push pull",
}


def test_help_groups_the_commands_in_the_order_of_use(command: Command) -> None:
    printed = command("--help").out.partition("First steps")
    lines = "".join(printed[1:]).splitlines()
    words = [re.sub(r"[│╭╰╮╯─]", "", line).removeprefix(" ").rstrip() for line in lines]
    found = [word.split("  ")[0] for word in words if word and not word.startswith("  ")]
    expected = [word for panel, names in GROUPED.items() for word in (panel, *names.split())]
    assert found == expected


def test_every_registered_command_is_in_the_help() -> None:
    grouped = {name for names in GROUPED.values() for name in names.split()}
    assert set(typer.main.get_group(main.app).commands) == grouped


@pytest.mark.parametrize("rich", ["0", "1"])
def test_help_through_a_pipe_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, rich: str
) -> None:
    monkeypatch.setenv("TYPER_USE_RICH", rich)
    printed, err = process("--help").communicate(timeout=60)
    names = [name for names in GROUPED.values() for name in names.split()]
    found = re.findall(rf"^(?:│ |  )({'|'.join(names)})  ", printed, flags=re.MULTILINE)
    assert (found, err) == (names, "")


def test_version(command: Command) -> None:
    assert command("--version").out == f"vitlab {vitlab.__version__}\n"


@pytest.mark.parametrize(
    "name",
    [
        *("models", "summary", "train", "evaluate", "info", "convert", "export", "predict", "demo"),
        *("push", "pull", "weights list", "weights fetch"),
        *("features", "similar", "fewshot", "finetune", "explain", "figures", "walkthrough"),
        "zeroshot",
        *("benchmark", "experiment", "pretrain"),
    ],
)
def test_every_command_has_help_and_json(command: Command, name: str) -> None:
    outcome = command(*name.split(), "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modles"], "No such command 'modles'. Did you mean 'models'?"),
        (["--nope"], "No such option: --nope"),
        (["summary"], "Missing argument 'NAME|PATH'."),
        (["summary", "vit_test", "--batch", "two"], "--batch"),
        (["summary", "vit_test", "--image-size", "3x"], "'3x' is neither N nor HEIGHTxWIDTH"),
        (["summary", "vit_test", "--image-size", "0"], "'0' is neither N nor HEIGHTxWIDTH"),
        (["summary", "vit_test", "--set", "heads"], "'heads' is not key=value"),
        (["models", "a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line(command: Command, arguments: list[str], message: str) -> None:
    assert message in command(*arguments).mistake


def test_a_missing_file_is_the_users_mistake(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(FileNotFoundError(2, "No such file or directory", "a.npz"), monkeypatch)
    assert command().mistake == "a.npz: No such file or directory"


def test_our_own_fault_is_one_line_and_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VITLAB_DEBUG", raising=False)
    raising(KeyError("two\nlines"), monkeypatch)
    outcome = command()
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "KeyError" in outcome.err
    assert "VITLAB_DEBUG=1" in outcome.err


def test_debugging_shows_the_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_DEBUG", "1")
    raising(KeyError("x"), monkeypatch)
    assert "Traceback" in command().err


def test_an_interrupt_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert (command().code) == 130


def test_the_console_script_passes_on_code_and_line() -> None:
    started = process("summary", "vit_sed")
    out, err = started.communicate()
    outcome = Outcome(started.returncode, out, err)
    assert "unknown model or file 'vit_sed'; did you mean vit_seed" in outcome.mistake


def test_a_closed_pipe_is_no_error() -> None:
    started = process("--help")
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    assert started.stderr.read() == ""
    started.stderr.close()
    started.wait()
