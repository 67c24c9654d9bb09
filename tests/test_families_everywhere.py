"""Every family works everywhere: features, attention, maps, figures, training, export, the page."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitlab
from models.family_configs import FAMILIES, config_of
from reference.random_weights import randomise
from tiny_runs import fit_noise, random_batch, same_weights
from vitlab.classify.classifier import Classifier
from vitlab.explain.request import answerable
from vitlab.images.preprocessing import HALF, Preprocessing
from vitlab.models.config import pair
from vitlab.models.vit import VisionTransformer
from vitlab.serve.network import Network
from vitlab.weights.source import WeightSource

every = pytest.mark.parametrize("family", FAMILIES)
CLOSE: Any = {"rtol": 1e-5, "atol": 1e-5}


def classifier(family: str) -> Classifier:
    torch.manual_seed(0)
    model = VisionTransformer(config_of(family))
    randomise(model)
    half = Preprocessing(size=pair(model.config.image_size), mean=HALF, std=HALF)
    source = WeightSource(format="vitlab", path=Path("random"), preprocessing=half)
    model.source = source
    return Classifier(model.eval(), source)


def photo() -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@every
def test_features_attention_and_maps(family: str) -> None:
    found = classifier(family)
    model = found.model
    config = model.config
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits, features = model(images), model.features(images, layers=[0, -1])
        weights = model.attention(images)
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(logits, model(images), **CLOSE)
    assert logits.std() > 1e-2
    assert features.patches.shape == (2, 4, 8, 32)
    assert features.registers.shape[1] == config.registers
    assert (features.cls is not None) == config.class_token
    assert set(features.layers) == {0, -1}
    torch.testing.assert_close(model.classify(features.pooled), logits, **CLOSE)
    if model.head is not None and config.pool != "cls_dist":
        assert features.pooled.shape[1] == config.pooled_width
    for layer in range(config.depth):
        assert weights[layer].shape == (2, 2, config.tokens, config.tokens)
        torch.testing.assert_close(weights[layer].sum(-1), torch.ones(2, 2, config.tokens))
    methods = answerable(model)
    assert {"attention", "rollout", "gradcam", "input-gradient"} <= {*methods}
    for method in methods:
        answer = found.explain(photo(), method=method)
        assert np.isfinite(np.asarray(answer.map)).all()
        assert np.asarray(answer.map).std() > 0, method


@every
def test_attention_is_what_the_blocks_use(family: str) -> None:
    """Weights times values, projected, is the attention output of the fused kernel."""
    model = classifier(family).model.double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        x, grid, positions = model.embed(images)
        block = model.encoder.blocks[0]
        weights = model.attention(images, [0])[0]
        inputs = x if model.config.norm == "res_post" else block.norm1(x)
        seen: list[torch.Tensor] = []
        hook = block.attention.register_forward_hook(lambda m, i, o: seen.append(o))
        model.encoder.step(x, grid, positions, 0)
        hook.remove()
        qkv = block.attention.qkv(inputs).unflatten(-1, (3, 2, 16))
        values = qkv[:, :, 2].transpose(1, 2)
        if not model.config.key_bias:
            values = values + block.attention.qv_bias[1][:, None]
        mixed = (weights @ values).transpose(1, 2).flatten(2)
        if model.config.attention_norm:
            mixed = block.attention.norm(mixed)
        expected = block.attention.proj(mixed)
    (output,) = seen
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@every
def test_the_page_and_the_server_answer_as_the_model(family: str) -> None:
    found = classifier(family)
    inside = Network(found)
    pixels = found.preprocessing.pixels(photo())
    layers = inside.layers(pixels)
    expected = found.probabilities(inside.images(pixels))[0]
    np.testing.assert_allclose(layers[-1], expected.numpy(), **CLOSE)
    tokens = found.model.config.tokens
    assert inside.attention(pixels, 1).shape == (2, tokens + 1, tokens)
    assert np.isfinite(inside.rollout(pixels)).all()
    assert np.isfinite(inside.map(pixels, "gradcam", 3)).all()
    assert inside.facts()["registers"] == found.model.config.registers


@every
def test_one_step_lowers_the_loss(family: str) -> None:
    model = classifier(family).model.train()
    batch = random_batch(8)
    loss = F.cross_entropy(model(batch.images), batch.targets)
    loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None]
    assert not silent
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-2 / norm * parameter.grad
        after = F.cross_entropy(model(batch.images), batch.targets)
    assert after < loss


@every
@pytest.mark.slow
def test_resuming_equals_never_stopping(family: str, tmp_path: Path) -> None:
    config = config_of(family)
    whole = fit_noise(tmp_path / "whole", steps=4, network=config)
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path / "halves", steps=4, plug=3, network=config)
    resumed = fit_noise(tmp_path / "halves", steps=4, network=config)
    assert same_weights(whole.model, resumed.model)


@every
@pytest.mark.slow
@pytest.mark.usefixtures("no_type_checks")
def test_export(family: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    made = vitlab.export(classifier(family), output=tmp_path / "a.onnx", tolerance=1e-4)
    assert made.comparison.largest <= 1e-4 * max(1.0, made.comparison.scale)


@every
@pytest.mark.slow
def test_figures(family: str) -> None:
    found = vitlab.figures(classifier(family), images=4)
    assert len(found.figures) > 3
    assert not found.broken
