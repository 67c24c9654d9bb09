"""OpenCLIP's image tower by its definition: the names of its tensors, and what they compute."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, OUT = 24, 3, 11


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Bend(nn.Module):
    def __init__(self, *, quick: bool) -> None:
        super().__init__()
        self.quick = quick

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x) if self.quick else nn.functional.gelu(x)


class Block(nn.Module):
    def __init__(self, *, quick: bool, scaled: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.ls_1 = Scale() if scaled else nn.Identity()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(WIDTH, 40))
        self.mlp.add_module("gelu", Bend(quick=quick))
        self.mlp.add_module("c_proj", nn.Linear(40, WIDTH))
        self.ls_2 = Scale() if scaled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.ls_1(self.attn(y, y, y, need_weights=False)[0])
        return x + self.ls_2(self.mlp(self.ln_2(x)))


class OpenClipTower(nn.Module):
    def __init__(
        self, image_size: Any, patch_size: Any, *, layers: int, quick: bool, scaled: bool = False
    ) -> None:
        super().__init__()
        height, width = (image_size,) * 2 if isinstance(image_size, int) else image_size
        rows, columns = (patch_size,) * 2 if isinstance(patch_size, int) else patch_size
        patches = (height // rows) * (width // columns)
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positional_embedding = nn.Parameter(torch.randn(patches + 1, WIDTH))
        self.proj = nn.Parameter(torch.randn(WIDTH, OUT))
        self.conv1 = nn.Conv2d(3, WIDTH, patch_size, stride=patch_size, bias=False)
        self.ln_pre = nn.LayerNorm(WIDTH)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.Sequential(
            *(Block(quick=quick, scaled=scaled) for _ in range(layers))
        )
        self.ln_post = nn.LayerNorm(WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images).flatten(2).mT
        first = self.class_embedding.expand(len(x), 1, -1)
        x = self.ln_pre(torch.cat([first, x], dim=1) + self.positional_embedding)
        for block in self.transformer.resblocks:
            x = block(x)
        return self.ln_post(x)[:, 0] @ self.proj
