"""Which network it is: the same digest for the same config and the same tensors."""

import hashlib
import json
from typing import Any, Protocol, cast

from torch import Tensor, nn

from vitlab.config import to_dict


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def network_digest(model: nn.Module) -> str:
    """The same for models that compute the same; of whatever file they came."""
    config = to_dict(cast(Any, model).config)
    digest = hashlib.blake2b(json.dumps(config).encode(), digest_size=16)
    add_tensors(digest, model)
    return digest.hexdigest()


def add_tensors(digest: _Digest, model: nn.Module) -> None:
    """Let names and numbers of a model's tensors count."""
    tensors: dict[str, Tensor] = model.state_dict()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
