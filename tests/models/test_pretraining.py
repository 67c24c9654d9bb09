"""Objectives without labels against plain definitions in float64, and models they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.models.config import ViTConfig
from vitlab.models.pretraining import MaskedAutoencoder, MaskedPatch
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer
from vitlab.nn.masking import draw_corruption, random_order
from vitlab.nn.pos_embed import sincos_table
from vitlab.training.pretraining import why_not

B, C, ROWS, COLUMNS, PH, PW = 2, 3, 3, 5, 2, 4
N = ROWS * COLUMNS
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
CPU = torch.device("cpu")


def vit(**changes: Any) -> VisionTransformer:
    torch.manual_seed(0)
    config = ViTConfig(
        **{
            "width": 12,
            "depth": 2,
            "heads": 3,
            "mlp_width": 14,
            "patch_size": (PH, PW),
            "image_size": (ROWS * PH, COLUMNS * PW),
            "classes": 0,
            **changes,
        }
    )
    return VisionTransformer(config).double()


def pictures() -> Tensor:
    torch.manual_seed(1)
    values = torch.rand(B, C, ROWS * PH, COLUMNS * PW).double()
    return (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def patch(images: Tensor, image: int, place: int) -> Tensor:
    """The pixels of one patch, [C, PH, PW]."""
    row, column = divmod(place, COLUMNS)
    return images[image, :, row * PH : (row + 1) * PH, column * PW : (column + 1) * PW]


def embeddings(model: VisionTransformer, images: Tensor, image: int) -> list[Tensor]:
    """Of each patch of an image, before it knows its place."""
    proj: Any = model.stem.proj
    kernel = proj.weight.flatten(1)
    return [kernel @ patch(images, image, i).flatten() + proj.bias for i in range(N)]


POOLS = [{}, {"class_token": False, "pool": "mean"}, {"registers": 2, "position": "sincos2d"}]


@pytest.mark.parametrize("changes", POOLS)
@torch.no_grad()
def test_masked_patches_by_definition(changes: dict[str, Any]) -> None:
    images, model = pictures(), vit(**changes)
    objective = MaskedPatch(model, mask=0.5, replaced=0.6, swapped=0.2, mean=MEAN, std=STD).double()
    torch.manual_seed(2)
    found = objective.predict(images)
    torch.manual_seed(2)
    drawn = draw_corruption(B, N, share=0.5, masked=0.6, swapped=0.2, device=CPU)
    for image in range(B):
        own = embeddings(model, images, image)
        stand = [
            objective.mask_token if drawn.masked[image, i] else own[int(drawn.source[image, i])]
            for i in range(N)
        ]
        x, grid, _ = model.place(torch.stack(stand).unflatten(0, (ROWS, COLUMNS))[None])
        tokens = model.encoder(x, grid)[0, model.config.prefix :]
        losses, right = [], 0
        for place in drawn.chosen[image].tolist():
            scores = objective.colours.weight @ tokens[place] + objective.colours.bias
            pixels = patch(images, image, place).numpy() * np.array(STD)[:, None, None]
            means = (pixels + np.array(MEAN)[:, None, None]).mean(axis=(1, 2))
            r, g, b = (min(int(mean * 8), 7) for mean in means)
            losses.append(-scores.log_softmax(dim=0)[64 * r + 8 * g + b])
            right += int(scores.argmax()) == 64 * r + 8 * g + b
        assert len(losses) == 8  # of 15
        # Cross-entropy is computed in float32.
        torch.testing.assert_close(
            found.loss[image], torch.stack(losses).mean().float(), rtol=1e-6, atol=1e-6
        )
        assert (int(found.correct[image]), int(found.total[image])) == (right, 8)


def test_every_position_of_the_whole_grid_may_be_masked() -> None:
    for changes in ({"position": "relative"}, {"attention": "lsa"}, {"position": "conditional"}):
        model = vit(**changes)
        assert why_not(model, "masked-patch") is None
        objective = MaskedPatch(model, mask=0.5, replaced=0.8, swapped=0.1, mean=MEAN, std=STD)
        assert objective.double()(pictures()).isfinite().all()


@pytest.mark.parametrize("changes", POOLS)
@torch.no_grad()
def test_a_masked_autoencoder_by_definition(changes: dict[str, Any]) -> None:
    images, model = pictures(), vit(**changes)
    objective = MaskedAutoencoder(
        model, mask=0.7, decoder_width=8, decoder_depth=1, decoder_heads=2
    ).double()
    prefix = model.config.prefix
    torch.manual_seed(2)
    found = objective.predict(images)
    torch.manual_seed(2)
    orders = random_order(B, N, CPU)
    visible = N - round(0.7 * N)
    table = sincos_table(8, (ROWS, COLUMNS), (ROWS, COLUMNS))
    for image in range(B):
        kept = orders[image, :visible].tolist()
        all_tokens, grid, _ = model.embed(images[image : image + 1])
        some = [all_tokens[0, i] for i in range(prefix)]
        some += [all_tokens[0, prefix + i] for i in kept]
        seen = objective.enter(model.encoder(torch.stack(some)[None], grid))[0]
        patches = {place: seen[prefix + i] for i, place in enumerate(kept)}
        whole = [*seen[:prefix]]
        whole += [patches.get(i, objective.mask_token) + table[i] for i in range(N)]
        drawn = objective.decoder(torch.stack(whole)[None], grid)[0, prefix:]
        errors, powers = [], []
        for place in set(range(N)) - set(kept):
            pixels = patch(images, image, place).flatten().numpy()
            wanted = (pixels - pixels.mean()) / np.sqrt(pixels.var() + 1e-6)
            correct = objective.pixels.weight @ drawn[place] + objective.pixels.bias
            errors.append(((correct.numpy() - wanted) ** 2).mean())
            powers.append((wanted**2).mean())
        assert len(errors) == 10  # of 15
        # What is drawn is compared in float32.
        assert float(found.loss[image]) == pytest.approx(np.mean(errors), rel=1e-6)
        assert float(found.correct[image]) == pytest.approx(sum(powers) - sum(errors), rel=1e-5)
        assert float(found.total[image]) == pytest.approx(sum(powers), rel=1e-6)


def test_the_encoder_never_sees_what_was_left_out() -> None:
    images, model = pictures(), vit()
    objective = MaskedAutoencoder(
        model, mask=0.7, decoder_width=8, decoder_depth=1, decoder_heads=2
    ).double()
    kept = random_order(B, N, CPU)[:, :5]
    other = torch.rand_like(images)
    for image in range(B):
        for place in kept[image].tolist():
            patch(other, image, place).copy_(patch(images, image, place))
    assert torch.equal(objective.encode(images, kept), objective.encode(other, kept))
    assert objective.encode(images, kept).shape == (B, 1 + 5, 12)


@torch.no_grad()
def test_losses_in_bfloat16_are_nearly_the_same() -> None:
    """A number has eight bits there; sums of a few dozen of them stay within some per cent."""
    images = pictures().float()
    mae = MaskedAutoencoder(vit(), mask=0.7, decoder_width=8, decoder_depth=1, decoder_heads=2)
    colours = MaskedPatch(vit(), mask=0.5, replaced=0.8, swapped=0.1, mean=MEAN, std=STD)
    for objective in (mae.float(), colours.float()):
        torch.manual_seed(2)
        exact = objective(images)
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16):
            rough = objective(images)
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.0)


@torch.no_grad()
def test_pictures_keep_what_was_seen() -> None:
    images = pictures()
    mae = MaskedAutoencoder(vit(), mask=0.7, decoder_width=8, decoder_depth=1, decoder_heads=2)
    colours = MaskedPatch(vit(), mask=0.5, replaced=1.0, swapped=0.0, mean=MEAN, std=STD)
    for objective, hidden in ((mae.double(), 10), (colours.double(), 8)):
        torch.manual_seed(2)
        shown = objective.show(images)
        for image in range(B):
            seen = [bool(patch(shown["seen"], image, i).any()) for i in range(N)]
            assert seen.count(False) == hidden
            for place in range(N):
                same = torch.equal(
                    patch(shown["predicted"], image, place), patch(images, image, place)
                )
                assert same == seen[place]
    # A painted patch has one colour, no farther from its true mean than half a level.
    gaps = F.avg_pool2d(shown["true"] - images, (PH, PW)) * torch.tensor(STD)[:, None, None]
    assert gaps.abs().max() <= 1 / 16 + 1e-6


@pytest.mark.parametrize("objective", ["masked-patch", "mae"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stem": "shifted"}, "stem 'patch'"),
        ({"pool_after": 1, "image_size": (8, 8), "patch_size": 2}, "pool_after 1"),
        ({"depth": 0}, "no encoder blocks"),
        ({"image_size": (PH, PW)}, "one patch"),
    ],
)
def test_models_that_neither_can_take(changes: dict[str, Any], reason: str, objective: str) -> None:
    assert reason in str(why_not(vit(**changes), objective))
    assert "no patches" in str(why_not(create_model("cnn_tutorial"), objective))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"position": "relative"}, "position 'relative' at 'stem'"),
        ({"position": "rope"}, "position 'rope'"),
        ({"position": "conditional"}, "needs the whole grid"),
        ({"position_at": "every_layer"}, "at 'every_layer'"),
        ({"attention": "lsa"}, "attention 'lsa'"),
    ],
)
def test_models_whose_tokens_cannot_be_left_out(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not(vit(**changes), "mae"))
    assert why_not(vit(**changes), "masked-patch") is None


def test_too_many_channels_for_colours() -> None:
    assert "262,144 colours" in str(why_not(vit(channels=6), "masked-patch"))
    assert why_not(vit(channels=6), "mae") is None
