"""`vitlab demo`: a model layer by layer, and one image through it."""

from typing import TYPE_CHECKING

from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from torch import Tensor

NAME = "vit_seed"


def demo(json: Json = False) -> None:
    """Show a small model, and the shapes that one generated image takes in it."""
    import torch

    from vitlab import VisionTransformer, ViTConfig, summary
    from vitlab.models.config import pair
    from vitlab.models.variants import variant

    config = variant(NAME)
    assert isinstance(config, ViTConfig)
    torch.manual_seed(0)
    model = VisionTransformer(config).eval()
    images = gradient(*pair(config.image_size), config.channels)
    with torch.inference_mode():
        logits, attention = model(images), model.attention(images)
    shapes = {
        "images": list(images.shape),
        "logits": list(logits.shape),
        **{f"attention of layer {layer}": list(w.shape) for layer, w in attention.items()},
    }
    if json:
        print_json({"model": NAME, "summary": summary(model).to_dict(), "shapes": shapes})
        return
    print(f"{NAME}, layer by layer\n{summary(model)}\n\nOne generated image through it:")
    print_pairs((name, str(shape)) for name, shape in shapes.items())


def gradient(height: int, width: int, channels: int) -> "Tensor":
    """An image that grows brighter from one corner to the other."""
    import torch

    rows, columns = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)[None]
    return (rows + columns - 1).expand(1, channels, height, width)
