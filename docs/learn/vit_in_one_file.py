"""The Vision Transformer in one file.

The model of "An Image is Worth 16x16 Words" (arXiv:2010.11929), written to be read from top to
bottom. It needs PyTorch and nothing else. The numbers in brackets are the paper's equations.

Shapes, as in the paper:
    B images in a batch     C channels          P side of a patch in pixels
    N patches of an image   D width of a token  A attention heads          K width of a head, D / A

Run it to see the shapes, and one training step:
    python vit_in_one_file.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Cuts an image into patches and maps each patch to a token with one linear layer."""

    def __init__(self, patch_size: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.linear = nn.Linear(channels * patch_size * patch_size, width)  # the matrix E of (1)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, N, D]"""
        batch, channels, height, width = images.shape
        p = self.patch_size
        rows, columns = height // p, width // p
        # Name every axis: image, channel, patch row, pixel row, patch column, pixel column.
        pixels = images.reshape(batch, channels, rows, p, columns, p)
        pixels = pixels.permute(0, 2, 4, 1, 3, 5)  # the two patch axes come first
        patches = pixels.reshape(batch, rows * columns, channels * p * p)  # [B, N, C P P]
        tokens: Tensor = self.linear(patches)
        return tokens


class SelfAttention(nn.Module):
    """Multi-head self-attention: every token collects information from all tokens (appendix A)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)  # U_qkv of (5), for all heads at once
        self.output = nn.Linear(width, width)  # U_msa of (8)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        batch, count, width = tokens.shape
        qkv = self.to_qkv(tokens).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, A, N, K]  (5)
        weights = attention_weights(query, key)  # [B, A, N, N]  (6)
        mixed = weights @ value  # [B, A, N, K]  (7)
        joined = mixed.transpose(1, 2).reshape(batch, count, width)  # the heads side by side
        result: Tensor = self.output(joined)  # (8)
        return result


def attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """Share of attention that each query gives to each key; the rows sum to 1.

    The product of two vectors of K independent entries with mean 0 and variance 1 has variance K.
    Division by sqrt(K) brings it back to 1: otherwise softmax gives nearly everything to one key,
    and its gradient vanishes.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [B, A, N, N]
    return scores.softmax(dim=-1)


class MLP(nn.Module):
    """Two linear layers with GELU between them. Each token is processed by itself."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        result: Tensor = self.narrow(F.gelu(self.widen(tokens)))
        return result


class Block(nn.Module):
    """One layer of the encoder: attention moves information, the MLP processes it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = MLP(width, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        tokens = tokens + self.attention(self.norm1(tokens))  # (2)
        tokens = tokens + self.mlp(self.norm2(tokens))  # (3)
        return tokens


class ViT(nn.Module):
    """Patches, class token, positions, a stack of blocks, and a linear classifier."""

    def __init__(
        self,
        *,
        image_size: int = 32,
        patch_size: int = 4,
        channels: int = 3,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        hidden: int = 768,
        classes: int = 10,
    ) -> None:
        super().__init__()
        patches = (image_size // patch_size) ** 2
        self.patch_embedding = PatchEmbedding(patch_size, channels, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + patches, width))  # E_pos of (1)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]"""
        tokens = self.patch_embedding(images)  # [B, N, D]
        class_token = self.class_token.expand(len(images), -1, -1)  # the same for every image
        tokens = torch.cat([class_token, tokens], dim=1)  # [B, 1 + N, D]
        tokens = tokens + self.positions  # (1)
        for block in self.blocks:
            tokens = block(tokens)  # (2) and (3)
        image = self.norm(tokens)[:, 0]  # the class token stands for the image  (4)
        logits: Tensor = self.head(image)
        return logits


def main() -> None:
    """Classify random images, then take one training step."""
    torch.manual_seed(0)
    model = ViT()
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    print("images", tuple(images.shape), "-> logits", tuple(model(images).shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    before = F.cross_entropy(model(images), labels)
    before.backward()
    optimizer.step()
    after = F.cross_entropy(model(images), labels)
    print(f"loss {before.item():.3f} -> {after.item():.3f} after one step")


if __name__ == "__main__":
    main()
