"""Identity of models: a digest of everything that affects predictions."""

import hashlib
import json
from typing import Any, cast

import numpy as np
from torch import nn

from vitlab.config import to_dict
from vitlab.models.config import pair

HEAD_FIELDS = ("classes", "head", "representation_size")
TRAINING_FIELDS = ("dropout", "attention_dropout", "drop_path", "layer_scale")
"""Fields that follow from tensors, or that affect training only."""
SIZE_FIELDS = ("image_size", "patch_size")
"""Fields in which 224 and (224, 224) are equal."""
HEAD = ("head.", "pre_logits.")


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of config and tensors, without the head: the same in every file format."""
    config = {
        key: pair(getattr(model.config, key)) if key in SIZE_FIELDS else value
        for key, value in to_dict(model.config).items()
        if key not in (*HEAD_FIELDS, *TRAINING_FIELDS)
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith(HEAD):
            continue
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype.str} {tuple(tensor.shape)}".encode())
        digest.update(array.reshape(-1).data)
    return digest.hexdigest()


# Identity of a network: the same digest for the same config and the same tensors.


def network_digest(model: nn.Module, *facts: Any) -> str:
    """Digest of config, tensors and `facts`: equal for equal models, whatever their file."""
    told = [to_dict(cast(Any, model).config), *facts]
    digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
