"""`vitlab serve`: mistakes on the command line."""

import socket
from pathlib import Path

import pytest

from command import Command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-upload", "20 apples"], "size '20 apples'; valid: a number with kB, MB or GB"),
        (["--deadline", "0"], "deadline 0.0; valid: more than 0"),
        (["--port", "70000"], "port 70000; valid: 0 to 65535"),
        (["--allow-origin", "page.example"], "origin 'page.example'; valid: scheme and host"),
        (["--host", "203.0.113.7", "--api-key-file", "KEYS"], "address 203.0.113.7:8000"),
        (["--api-key-file", "EMPTY"], "no key; valid: one key a line"),
        (["--api-key-file", "SHORT"], "key 1 has 3 characters; valid: at least 16"),
        (["--api-key-file", "MISSING"], "cannot be read as text"),
    ],
)
def test_a_wrong_option_is_one_line(
    command: Command, tmp_path: Path, options: list[str], message: str
) -> None:
    for name, text in {"KEYS": "k" * 20, "EMPTY": "# none\n", "SHORT": "abc"}.items():
        (tmp_path / name).write_text(text)
    options = [str(tmp_path / word) if word.isupper() else word for word in options]
    assert message in command("serve", "cifar10", *options).mistake


def test_a_used_port_is_one_line(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"address 127.0.0.1:{port}" in command("serve", "cifar10", "--port", port).mistake


def test_an_unknown_model_is_one_line(command: Command) -> None:
    assert "cifar11" in command("serve", "cifar11").mistake
