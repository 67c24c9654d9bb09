"""Entry points of `torch.hub`: `torch.hub.load("REPOSITORY", "create_model", "vit_b16")`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from vitlab import create_model as create_model
from vitlab import load as load

dependencies = ["torch", "numpy", "PIL", "safetensors", "filelock", "einops", "jaxtyping"]
