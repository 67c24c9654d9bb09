"""Metrics as TensorBoard's event files, for whoever asks for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitlab.errors import FileError, MissingExtra


def check_tensorboard() -> None:
    """One clear line, before a run begins, if the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorboard=true") from error


class EventLog:
    """A folder of event files; what earlier ones say of later steps is marked as void."""

    def __init__(self, folder: Path, *, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        with self._writing():
            self._writer = SummaryWriter(str(folder), purge_step=after_step + 1)

    def write(self, tag: str, value: float, *, step: int, time: float) -> None:
        """Add one number; `time` in seconds since 1970."""
        with self._writing():
            self._writer.add_scalar(tag, value, step, walltime=time)

    def flush(self) -> None:
        """Bring everything to the disk."""
        with self._writing():
            self._writer.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be written ({error.strerror})") from error
