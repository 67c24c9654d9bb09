"""A process that decodes images: a line of tasks in, pixels out, until its input ends.

It ends by itself when whoever started it is gone, however that happened.
"""

import json
import signal
import struct
import sys
from collections.abc import Iterable
from typing import BinaryIO

from vitlab.errors import InputError
from vitlab.images.decode import Decoder

Task = tuple[str, int]
"""Path, and seed of the random crop."""
READY = b"\n"
HEADER = struct.Struct("<?I")
"""Whether pixels follow or a reason why not, and how many bytes that is."""


def main() -> None:
    """Serve standard input on standard output; the first line describes the decoder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which ends us
    lines, answers = sys.stdin, sys.stdout.buffer
    decoder = Decoder.from_json(json.loads(next(lines)))
    answers.write(READY)
    answers.flush()
    for line in lines:
        serve(decoder, [(path, seed) for path, seed in json.loads(line)], answers)


def serve(decoder: Decoder, tasks: Iterable[Task], answers: BinaryIO) -> None:
    """One answer per task, each sent as soon as it is there."""
    for path, seed in tasks:
        try:
            good, content = True, decoder.read(path, seed).tobytes()
        except InputError as error:
            good, content = False, str(error).encode(errors="replace")
        answers.write(HEADER.pack(good, len(content)) + content)
        answers.flush()


def command() -> list[str]:
    """How to start such a process: with our import path, and without our main module."""
    start = "from vitlab.data.loading.worker import main; main()"
    code = f"import sys; sys.path[:] = {sys.path!r}; {start}"
    return [sys.executable, "-c", code]
