"""A decoding process as the trainer sees it: started when needed, replaced when it dies."""

import io
import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode import Decoder
from vitlab.data.worker import HEADER, READY, Task, command

Reasons = dict[int, str]
"""What is wrong with an image, by its place in the batch."""
PATIENCE = 2
"""How many processes may die of the same file, or in starting: one may be bad luck."""


class DecoderDied(RuntimeError):
    """A decoding process that ended on its own."""


class DecoderProcess:
    """One process, used by one thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._errors: IO[bytes] | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def decode(self, tasks: Sequence[Task], pixels: NDArray[np.uint8]) -> Reasons:
        """Fill `pixels` [B, C, H, W]."""
        waiting = deque(enumerate(tasks))
        reasons: Reasons = {}
        deaths, asked = 0, False
        while waiting:
            place, _ = waiting[0]
            try:
                if not asked:
                    self._ask([task for _, task in waiting])
                    asked = True
                reason = self._answer(pixels[place])
            except (DecoderDied, BrokenPipeError):
                deaths, asked = deaths + 1, False
                code = self.stop()
                if deaths < PATIENCE:
                    continue
                reason = f"kills the process that decodes it (exit code {code})"
            deaths = 0
            waiting.popleft()
            if reason is not None:
                reasons[place] = reason
        return reasons

    def stop(self) -> int:
        """End the process, if there is one; its exit code."""
        popen, self._popen = self._popen, None
        if popen is None:
            return 0
        for stream in (popen.stdin, popen.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        return popen.wait()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        if self._errors is not None:
            self._errors.close()

    def _ask(self, tasks: Sequence[Task]) -> None:
        if self._popen is None:
            self._start()
        self._send(json.dumps(tasks))

    def _start(self) -> None:
        """A process that has said that it is ready; one that fails to is no file's fault."""
        if self._errors is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        for _ in range(PATIENCE):
            self._popen = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # a Ctrl-C in the terminal reaches the trainer alone
            )
            with suppress(DecoderDied, BrokenPipeError):
                self._send(json.dumps(self._decoder.to_json()))
                self._read(bytearray(len(READY)))
                return
            code = self.stop()
        self._errors.seek(0)
        told = self._errors.read().decode(errors="replace").strip()
        raise RuntimeError(f"no decoding process can start (exit code {code}): {told}")

    def _send(self, line: str) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def _answer(self, pixels: NDArray[np.uint8]) -> str | None:
        """Why there are no pixels; None: there are."""
        header = bytearray(HEADER.size)
        self._read(header)
        good, size = HEADER.unpack(header)
        if good:
            self._read(pixels.reshape(-1).data)
            return None
        reason = bytearray(size)
        self._read(reason)
        return reason.decode()

    def _read(self, buffer: bytearray | memoryview) -> None:
        """Fill the buffer."""
        assert self._popen is not None
        stream = self._popen.stdout
        assert isinstance(stream, io.BufferedReader)
        if stream.readinto(buffer) != len(buffer):
            raise DecoderDied
