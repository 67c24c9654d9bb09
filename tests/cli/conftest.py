"""Commands run in this process, through the same door as the console script."""

import pytest

from command import Command, Outcome
from vitlab.cli.main import run


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `vitlab` with these arguments."""

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Outcome(code, written.out, written.err)

    return call
