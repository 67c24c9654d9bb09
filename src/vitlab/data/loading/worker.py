"""Decoding process: a line of tasks in, pixels out, until its input ends.

It ends by itself when its parent process is gone, for any reason.
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
"""Flag for pixels or a reason, and the number of bytes that follow."""


def main() -> None:
    """Serve standard input on standard output; the first line describes the decoder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer
    lines, answers = sys.stdin, sys.stdout.buffer
    decoder = Decoder.from_json(json.loads(next(lines)))
    answers.write(READY)
    answers.flush()
    for line in lines:
        serve(decoder, [(path, seed) for path, seed in json.loads(line)], answers)


def serve(decoder: Decoder, tasks: Iterable[Task], answers: BinaryIO) -> None:
    """Send one answer per task, each as soon as it is ready."""
    for path, seed in tasks:
        try:
            good, content = True, decoder.read(path, seed).tobytes()
        except InputError as error:
            good, content = False, str(error).encode(errors="replace")
        answers.write(HEADER.pack(good, len(content)) + content)
        answers.flush()


def command() -> list[str]:
    """Command of such a process: with this import path, and without the caller's main module."""
    start = "from vitlab.data.loading.worker import main; main()"
    code = f"import sys; sys.path[:] = {sys.path!r}; {start}"
    return [sys.executable, "-c", code]
