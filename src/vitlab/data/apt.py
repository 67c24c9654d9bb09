"""Packages of Debian, fetched with the `apt-get` client and never installed."""

import shutil
import subprocess
from pathlib import Path

from vitlab.checksum import check_file
from vitlab.data.datasets import StoredFile
from vitlab.download import Progress
from vitlab.errors import DataError

LIMIT_SECONDS = 600


def apt_download(package: str, file: StoredFile, folder: Path, progress: Progress) -> Path:
    """Let `apt-get download` bring a package, whose file is this, into a folder."""
    client = shutil.which("apt-get")
    if client is None:
        raise DataError("the apt-get client is not installed")
    target = folder / file.name
    target.unlink(missing_ok=True)
    progress.note(f"apt-get download {package}")
    try:
        done = subprocess.run(
            [client, "download", package],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"apt-get brought nothing for {LIMIT_SECONDS} seconds") from None
    if done.returncode or not target.is_file():
        reason = " ".join((done.stderr or done.stdout).split())[-200:]
        raise DataError(f"apt-get download {package} failed ({reason})")
    try:
        check_file(target, size=file.size, checksum=file.checksum)
    except DataError:
        target.unlink()
        raise
    return target
