"""Settings of a server, and the refusals that its clients see."""

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from vitlab.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and permissions of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 32
    """Images that are computed at once."""
    max_queue: int = 128
    """Images between the first byte of their request and its answer."""
    max_upload: int = 20_000_000
    """Bytes of a request's body."""
    max_memory: int = 400_000_000
    """Bytes of all bodies that are held at once, read or being read."""
    max_pixels: int | None = None
    deadline: float = 10.0
    """Seconds in which a request is answered."""
    drain: float = 30.0
    """Seconds to finish accepted requests after SIGTERM."""
    decoders: int = 2
    """Processes that decode images."""
    keys: frozenset[bytes] = frozenset()
    """SHA-256 of each valid key; empty: none is needed."""
    hosts: tuple[str, ...] = ()
    """Names in the Host header that are accepted besides addresses and localhost."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server."""
    samples: tuple[Path, ...] = ()
    """Images and folders that the page offers; empty: those of the package."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_queue", "max_upload", "deadline", "drain", "decoders"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}; valid: more than 0")
        if not 0 <= self.port <= 65535:
            raise InputError(f"port {self.port}; valid: 0 to 65535")
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or origin.endswith("/"):
                raise InputError(f"origin {origin!r}; valid: scheme and host: https://example.org")

    @property
    def exposed(self) -> bool:
        """True if other machines may connect and no key is needed."""
        return self.host not in LOOPBACK and not self.keys

    def is_key(self, given: bytes) -> bool:
        """Compare a key in constant time."""
        digest = hashlib.sha256(given).digest()
        equal = [hmac.compare_digest(digest, key) for key in self.keys]
        return any(equal)


def read_keys(path: Path) -> frozenset[bytes]:
    """Digests of the keys in a file, one on each line; blank lines and # comments are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise InputError(f"{path}: no key; valid: one key a line")
    for number, key in enumerate(keys, 1):
        if len(key) < 16:
            raise InputError(f"{path}: key {number} has {len(key)} characters; valid: at least 16")
    return frozenset(hashlib.sha256(key.encode()).digest() for key in keys)


def parse_bytes(text: str) -> int:
    """Number of bytes from `20MB`, `500 kB` or `1000000`."""
    digits = text.strip().rstrip("bBkKmMgG ")
    unit = text.strip()[len(digits) :].strip().upper()
    if not digits.isdecimal() or unit not in UNITS:
        raise InputError(f"size {text!r}; valid: a number with kB, MB or GB, such as 20MB")
    return int(digits) * UNITS[unit]


@dataclass
class Refused(Exception):
    """A request that is answered with an error status."""

    status: int
    reason: str
    """One word for the metrics."""
    message: str
    headers: dict[str, str] = field(default_factory=dict)
