"""The Vision Transformer of vit-pytorch's older release, plainly: `mean` averages all tokens."""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.norm = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        plain = heads == 1 and head_width == width
        self.to_out = (
            nn.Identity() if plain else nn.Sequential(nn.Linear(heads * head_width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        queries, keys, values = (
            part.reshape(batch, tokens, self.heads, self.head_width).transpose(1, 2)
            for part in self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        )
        scores = queries @ keys.transpose(-1, -2) / self.head_width**0.5
        seen = scores.softmax(dim=-1) @ values  # [B, A, N, K]
        out: Tensor = self.to_out(seen.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        first, second = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.net = nn.Sequential(nn.LayerNorm(width), first, nn.GELU(), nn.Identity(), second)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Transformer(nn.Module):
    def __init__(self, layers: list[nn.ModuleList], width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            for part in layer.children():  # attention, then the MLP
                x = part(x) + x
        out: Tensor = self.norm(x)
        return out


class SeedViT(nn.Module):
    """Patches are flattened row by row, channels last, and normalised before and behind."""

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        classes: int,
        width: int,
        depth: int,
        heads: int,
        head_width: int,
        mlp_width: int,
        channels: int = 3,
        pool: str = "cls",
    ) -> None:
        super().__init__()
        self.patch_size, self.pool = patch_size, pool
        grid = (image_size[0] // patch_size[0], image_size[1] // patch_size[1])
        flat = channels * patch_size[0] * patch_size[1]
        self.to_patch_embedding = nn.Sequential(
            nn.Identity(), nn.LayerNorm(flat), nn.Linear(flat, width), nn.LayerNorm(width)
        )
        self.pos_embedding = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + 1, width))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        layers = [
            nn.ModuleList([Attention(width, heads, head_width), FeedForward(width, mlp_width)])
            for _ in range(depth)
        ]
        self.transformer = Transformer(layers, width)
        self.mlp_head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        height, width = self.patch_size
        rows = [
            images[:, :, top : top + height, left : left + width].permute(0, 2, 3, 1).flatten(1)
            for top in range(0, images.shape[2], height)
            for left in range(0, images.shape[3], width)
        ]
        x = self.to_patch_embedding(torch.stack(rows, dim=1))
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        x = self.transformer(x)
        pooled = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
        logits: Tensor = self.mlp_head(pooled)
        return logits
