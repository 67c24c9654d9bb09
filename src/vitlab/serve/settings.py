"""Settings of a server, and the refusals that its clients see."""

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from pathlib import Path

from vitlab.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LEAST_MEMORY, LEAST_DRAIN = 400_000_000, 30.0
NAME = re.compile(r"[^\s/:@?#]+\Z")
ORIGIN = re.compile(r"https?://[^\s/@?#]+\Z", re.IGNORECASE)
POSITIVE = (
    *("max_batch", "max_queue", "max_upload", "max_memory", "max_answer", "max_connections"),
    *("deadline", "drain", "decoders"),
)
"""Settings that are more than 0."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and permissions of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 32
    """Images that are computed at once."""
    max_queue: int = 128
    """Images of all requests whose body was read and whose answer is not sent."""
    max_upload: int = 20_000_000
    """Bytes of a request's body."""
    max_memory: int | None = None
    """Bytes of all bodies and answers that are held at once; None: see `memory`."""
    max_answer: int = 16_000_000
    """Bytes of an answer."""
    max_pixels: int | None = None
    max_connections: int = 1000
    """Connections that are open at once."""
    deadline: float = 10.0
    """Seconds in which the answer to a request begins."""
    drain: float | None = None
    """Seconds to finish accepted requests after SIGTERM; None: see `draining`."""
    decoders: int = 2
    """Processes that decode images."""
    keys: frozenset[bytes] = frozenset()
    """SHA-256 of each valid key; empty: none is needed."""
    public_metrics: bool = False
    """Answer /metrics without a key."""
    hosts: tuple[str, ...] = ()
    """Names in the Host header that are accepted besides addresses and localhost."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server."""
    samples: tuple[Path, ...] = ()
    """Images and folders that the page offers; empty: those of the package."""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} {value}; valid: more than 0")
        if not 0 <= self.port <= 65535:
            raise InputError(f"port {self.port}; valid: 0 to 65535")
        if self.drain is not None and self.drain < self.deadline:
            raise InputError(
                f"drain {self.drain:g} s; valid: at least the deadline, {self.deadline:g} s, "
                f"which an accepted request may take"
            )
        for name in self.hosts:
            if not NAME.match(name):
                raise InputError(f"host {name!r}; valid: a name without scheme and port")
        for origin in self.origins:
            if not ORIGIN.match(origin):
                raise InputError(f"origin {origin!r}; valid: scheme and host: https://example.org")
        for field_name in ("host", "hosts", "origins"):  # names do not depend on case
            value = getattr(self, field_name)
            lower = value.lower() if isinstance(value, str) else tuple(map(str.lower, value))
            object.__setattr__(self, field_name, lower)

    @property
    def memory(self) -> int:
        """Bytes of all bodies and answers: 400 MB, or more for two of the largest bodies."""
        default = max(LEAST_MEMORY, 2 * self.max_upload)
        return default if self.max_memory is None else self.max_memory

    @property
    def draining(self) -> float:
        """Seconds to finish accepted requests: 30, or the deadline if that is longer."""
        return max(LEAST_DRAIN, self.deadline) if self.drain is None else self.drain

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
