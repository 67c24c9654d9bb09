"""Which network it is: the same digest for the same config and the same tensors."""

import hashlib
import json
from typing import Any, cast

from torch import nn

from vitlab.config import to_dict


def network_digest(model: nn.Module, *facts: Any) -> str:
    """The same for models that compute the same, whatever file they came of, and the same facts."""
    told = [to_dict(cast(Any, model).config), *facts]
    digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
