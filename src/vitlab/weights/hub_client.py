"""Client of the Hugging Face hub: any failure is one line about the address."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any
from urllib.parse import urljoin, urlsplit

from vitlab.errors import FileError, HubError, MissingExtra, VitlabError
from vitlab.io.download import TIMEOUT, is_loopback
from vitlab.io.files import staged_folder

ANSWER = 64 << 20
"""Maximum bytes of a response that is not a file."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)
"""Errors of the client about responses that are not valid JSON, or JSON of another form."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


@contextmanager
def asking(address: object, *, progress: bool = False) -> Iterator["Client"]:
    """Client of the hub in HF_ENDPOINT, with the token of the environment."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra("hub", "the Hugging Face hub") from error
    api = huggingface_hub.HfApi(library_name="vitlab")
    with ExitStack() as stack:
        stack.enter_context(_quiet(bars=progress))
        client = Client(address, api)
        try:
            stack.enter_context(_bounded(client))
            yield client
        except VitlabError:
            raise
        except Exception as error:
            reason = _reason(error, api.endpoint)
            if reason is None:
                raise
            raise HubError(f"{address}: {reason}") from error


class Client:
    """Methods of `HfApi`; responses are limited to `limit` bytes, and may have any form."""

    def __init__(self, address: object, api: Any) -> None:
        self.address, self.limit = address, ANSWER
        self._api = api
        scheme = urlsplit(api.endpoint).scheme
        if scheme != "https" and not (scheme == "http" and is_loopback(api.endpoint)):
            raise HubError(f"{address}: HF_ENDPOINT is {api.endpoint}; valid: an https address")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return found(*arguments, **options)
            except VitlabError:
                raise
            except UNREADABLE as error:
                if _reason(error, self._api.endpoint) is not None or not _of_client(error):
                    raise
                raise self.wrong(error) from error

        return call

    def wrong(self, error: object) -> HubError:
        """One line about a response that cannot be used."""
        line = " ".join(str(error).split())[:200] or type(error).__name__
        return HubError(f"{self.address}: {self.endpoint} gave an answer of no valid form ({line})")

    def check_answer(self, response: Any, *_: Any, **__: Any) -> None:
        """Called with each response before its content is read, also before a redirect."""
        target = response.headers.get("location")
        if target and 300 <= response.status_code < 400:
            url = urljoin(str(response.url), target)
            if urlsplit(url).scheme != "https" and not (
                urlsplit(url).scheme == "http" and is_loopback(url) and is_loopback(self.endpoint)
            ):
                raise HubError(f"{self.address}: redirected to {url}; valid: an https address")
        # For httpx, raw and decompressed, and for requests in older releases.
        for name in ("iter_raw", "iter_bytes", "iter_content"):
            if hasattr(response, name):
                setattr(response, name, self._cut_off(getattr(response, name)))

    def _cut_off(self, read: Any) -> Any:
        def blocks(*arguments: Any, **options: Any) -> Iterator[bytes]:
            received = 0
            for block in read(*arguments, **options):
                received += len(block)
                if received > self.limit:
                    raise HubError(
                        f"{self.address}: {self.endpoint} sends more than {self.limit:,} bytes"
                    )
                yield block

        return blocks


def _of_client(error: BaseException) -> bool:
    """True if an error was raised in the hub's client, and not in its input."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(name.partition(".")[0] == "huggingface_hub" for name in frames)


@contextmanager
def _bounded(client: Client) -> Iterator[None]:
    """Let the client check every response; it has one session, shared by all users."""
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    hooks = session.event_hooks if hasattr(session, "event_hooks") else session.hooks
    patience = getattr(session, "timeout", None)
    hooks["response"].append(client.check_answer)
    if hasattr(session, "timeout"):
        session.timeout = TIMEOUT
    try:
        yield
    finally:
        hooks["response"].remove(client.check_answer)
        if hasattr(session, "timeout"):
            session.timeout = patience


@contextmanager
def _quiet(*, bars: bool) -> Iterator[None]:
    """Show progress bars only on request, and no warnings before the one line of an error."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    verbosity = logging.get_verbosity()
    hide = (
        not bars
        and not are_progress_bars_disabled()
        and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    )
    logging.set_verbosity_error()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if hide:
            enable_progress_bars()


def _reason(error: BaseException, endpoint: str) -> str | None:
    """Description of the error; None for a fault of this package."""
    from huggingface_hub import errors

    while isinstance(error, RuntimeError | errors.LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, errors.LocalTokenNotFoundError):
        return "no token to write with; set HF_TOKEN, or run `hf auth login` once"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it to reach the hub"
    if isinstance(error, errors.HFValidationError):
        return f"no valid name of a repository ({_line(error)})"
    if getattr(error, "response", None) is not None:  # also in requests' own, in older releases
        return _refused(error, endpoint)
    if isinstance(error, OSError) and error.errno in DISK:
        return f"cannot be written ({error.strerror})"
    # For requests (errors of the operating system) and httpx.
    if isinstance(error, (OSError, errors.HfHubHTTPError.__mro__[1])):
        return f"{endpoint} cannot be reached ({_line(error)})"
    return f"the transfer failed ({_line(error)})" if isinstance(error, RuntimeError) else None


def _refused(error: BaseException, endpoint: str) -> str:
    """Description of a response other than success."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"its owner grants access on request: ask at {endpoint}, then set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such repository at {endpoint}, or a private one that HF_TOKEN does not open"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision; valid: a branch, a tag or a commit of it"
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return "the token was refused; set HF_TOKEN to a valid one, or run `hf auth login` again"
    if status == 403:
        return "the token may not do that; valid: one with the right to write there"
    said = getattr(error, "server_message", None) or _line(error)
    return f"{endpoint} answered {status}: {' '.join(str(said).split())[:200]}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# Files from the hub: checked against its digests, in a folder that appears complete.

BLOCK = 1 << 20
"""Bytes read at once."""


@contextmanager
def staged(output: Path | None) -> Iterator[Path | None]:
    """Folder that becomes `output` on success; None stays None."""
    if output is None:
        yield None
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileError(f"{output} exists; choose another --output, or remove it")
    parent = output.absolute().parent
    if not parent.is_dir():
        raise FileError(f"{output}: folder {parent} does not exist")
    with staged_folder(output) as folder:
        yield folder
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # files of the hub's own client
        folder.chmod(0o777 & ~_umask())
        if output.exists():
            output.rmdir()
        os.replace(folder, output)


def check_content(path: Path, listed: Any, *, address: str) -> None:
    """Raise, and remove the file, unless it matches the listing of its repository."""
    expected, found = _digests(path, listed)
    if expected is None or found == expected:
        return
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    raise HubError(
        f"{address}: {path.name} came damaged: its digest is {found} instead of {expected}; "
        f"pull again"
    )


def _digests(path: Path, listed: Any) -> tuple[str | None, str]:
    """The stated digest and the file's own: sha256 of large files, git's of small ones."""
    large = getattr(listed, "lfs", None)
    if large is not None:
        return large["sha256"], _digest(path, hashlib.sha256())
    header = f"blob {path.stat().st_size}\0".encode()
    return listed.blob_id, _digest(path, hashlib.sha1(header, usedforsecurity=False))


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return str(digest.hexdigest())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
