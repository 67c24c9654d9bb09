"""A stem of your own, and a model that uses it, without changing vitlab.

    python docs/examples/register_part.py

A stem is made from a `ViTConfig` and turns images [B, C, H, W] into a grid of tokens
[B, h, w, D]. A position (kind "position") is made from a config, too, and answers
`position(grid)` with a table to add; an attention (kind "attention") is made from a config and
the number of a layer and has `forward(x, grid)` and `weights(x, grid)`.
"""

import torch
from torch import Tensor, nn

import vitlab


@vitlab.register("stem", "frequencies")
class FrequencyStem(nn.Module):
    """Tokens from the spectrum of each patch instead of its pixels."""

    def __init__(self, config: vitlab.ViTConfig) -> None:
        super().__init__()
        assert isinstance(config.patch_size, int)
        self.patch_size = config.patch_size
        # A real image of P columns has P // 2 + 1 frequencies along a row.
        spectrum = config.channels * self.patch_size * (self.patch_size // 2 + 1)
        self.proj = nn.Linear(spectrum, config.width)

    def forward(self, images: Tensor) -> Tensor:
        size = self.patch_size
        patches = images.unfold(2, size, size).unfold(3, size, size)  # [B, C, h, w, P, P]
        spectrum = torch.fft.rfft2(patches, norm="ortho").abs().log1p()
        return self.proj(spectrum.movedim(1, 3).flatten(3))


vitlab.register(
    "variant",
    "vit_frequencies",
    vitlab.ViTConfig(
        width=64,
        depth=4,
        heads=4,
        mlp_width=128,
        patch_size=8,
        image_size=32,
        classes=10,
        stem="frequencies",
    ),
)


def main() -> None:
    model = vitlab.create_model("vit_frequencies", classes=3).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, 3, 32, 32))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"vit_frequencies: {parameters:,} parameters, logits {list(logits.shape)}")


if __name__ == "__main__":
    main()
