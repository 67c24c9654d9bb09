"""Features of every kind and layer are those that the model itself tells apart."""

import pytest
import torch
from torch import Tensor, nn

from vitlab import VisionTransformer, ViTConfig, create_model
from vitlab.errors import InputError, UnknownName
from vitlab.models.features import Readout
from vitlab.weights.source import fingerprint

BATCH, DEPTH, WIDTH, REGISTERS, ROWS, COLUMNS = 2, 3, 14, 5, 3, 7
PLAIN = ViTConfig(
    width=WIDTH,
    depth=DEPTH,
    heads=2,
    mlp_width=11,
    patch_size=2,
    image_size=(2 * ROWS, 2 * COLUMNS),
    classes=13,
    registers=REGISTERS,
)


def model_with(**changes: object) -> VisionTransformer:
    torch.manual_seed(0)
    fields = {name: getattr(PLAIN, name) for name in PLAIN.__slots__}
    model = VisionTransformer(ViTConfig(**{**fields, **changes}))
    for parameter in model.parameters():  # LayerNorms of ones and zeros would hide a mistake
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(BATCH, 3, 2 * ROWS, 2 * COLUMNS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pool", ["cls", "mean", "mean_all", "map"])
@pytest.mark.parametrize("kind", ["pooled", "cls", "patches"])
def test_the_last_layer_is_what_the_model_tells(images: Tensor, kind: str, pool: str) -> None:
    model = model_with(pool=pool)
    with torch.inference_mode():
        assert torch.equal(Readout(model, kind=kind)(images), getattr(model.features(images), kind))


def test_pooled_is_what_the_head_reads(images: Tensor) -> None:
    model = model_with(pool="mean", norm_at="pooled")
    with torch.inference_mode():
        assert model.head is not None
        torch.testing.assert_close(model.head(Readout(model)(images)), model(images))


@pytest.mark.parametrize("unit_norm", [False, True])
def test_the_embedding_is_what_the_last_layer_reads(images: Tensor, unit_norm: bool) -> None:
    model = model_with(head="projection", representation_size=17, unit_norm=unit_norm)
    with torch.inference_mode():
        found = Readout(model, kind="embedding")(images)
        assert found.shape == (BATCH, 17)
        assert model.head is not None
        torch.testing.assert_close(model.head(found), model(images))
    with pytest.raises(InputError, match="valid: embedding without a layer"):
        Readout(model, kind="embedding", layer=1)


def test_the_projection_counts_in_the_fingerprint_of_embeddings() -> None:
    model = model_with(head="projection", representation_size=17)
    before = fingerprint(model), fingerprint(model, embedding=True)
    model.head.weight.data += 1
    assert (fingerprint(model), fingerprint(model, embedding=True)) == before
    model.pre_logits.weight.data += 1
    assert fingerprint(model) == before[0]
    assert fingerprint(model, embedding=True) != before[1]


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -3])
def test_any_layer_is_the_output_of_its_block(images: Tensor, layer: int) -> None:
    model = model_with(pool="mean")
    with torch.inference_mode():
        block = model.features(images, layers=[layer]).layers[layer]
        found = {kind: Readout(model, kind=kind, layer=layer) for kind in ("cls", "patches")}
        pooled = Readout(model, kind="pooled", layer=layer)
        assert torch.equal(found["cls"](images), block.tokens[:, 0])
        assert torch.equal(found["patches"](images), block.patches)
        assert found["patches"](images).shape == (BATCH, ROWS, COLUMNS, WIDTH)
        torch.testing.assert_close(pooled(images), block.patches.mean(dim=(1, 2)))
    assert pooled.layer == layer % DEPTH


@pytest.mark.parametrize(("pool", "first"), [("cls", None), ("mean_all", 0)])
def test_a_layer_is_pooled_as_the_model_pools(images: Tensor, pool: str, first: int | None) -> None:
    model = model_with(pool=pool)
    with torch.inference_mode():
        tokens = model.features(images, layers=[1]).layers[1].tokens
        expected = tokens[:, 0] if first is None else tokens.mean(dim=1)
        torch.testing.assert_close(Readout(model, layer=1)(images), expected)


def test_blocks_behind_the_layer_are_not_computed(images: Tensor) -> None:
    model = model_with()
    ran: list[int] = []
    for number, block in enumerate(model.encoder.blocks):
        block.register_forward_hook(lambda *_, number=number: ran.append(number))
    with torch.inference_mode():
        Readout(model, kind="cls", layer=1)(images)
    assert ran == [0, 1]


@pytest.mark.parametrize("name", ["cnn_tutorial", "resnet18_cifar"])
def test_cnns_have_pooled_features(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name).eval()
    images = torch.randn(BATCH, 3, 32, 32)
    readout = Readout(model)
    with torch.inference_mode():
        found = readout(images)
        assert isinstance(model.head, nn.Linear)
        torch.testing.assert_close(model.head(found), model(images))
    assert found.shape == (BATCH, model.head.in_features)
    assert not model.head._forward_pre_hooks
    with pytest.raises(InputError, match=r"cls features of a \w+, which is no Vision Transformer"):
        Readout(model, kind="cls")
    with pytest.raises(InputError, match="pooled features of layer 0 of a"):
        Readout(model, layer=0)


@pytest.mark.parametrize(
    ("changes", "asked", "message"),
    [
        ({}, {"kind": "clss"}, "unknown kind of features 'clss'; did you mean cls"),
        ({}, {"layer": 3}, "layer 3 does not exist; valid: -3 to 2"),
        ({}, {"layer": -4}, "layer -4 does not exist"),
        (
            {"class_token": False, "pool": "mean"},
            {"kind": "cls"},
            "cls features of a model without class token; valid: pooled, patches",
        ),
        ({"pool": "map"}, {"layer": 1}, "attention pooling knows the last layer alone"),
    ],
)
def test_what_a_model_does_not_have_is_refused_at_once(
    changes: dict[str, object], asked: dict[str, object], message: str
) -> None:
    with pytest.raises((InputError, UnknownName), match=message):
        Readout(model_with(**changes), **asked)
