"""Counter-based randomness: a draw depends on the seed and its purpose, never on earlier draws.

A run that resumes at step 1000 needs no generator state, only the number 1000.
"""

import hashlib

import torch


def seed_for(seed: int, *purpose: str | int) -> int:
    """64-bit seed for one purpose, such as `"augment", step`."""
    key = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """New generator on the CPU for one purpose."""
    return torch.Generator().manual_seed(seed_for(seed, *purpose))
