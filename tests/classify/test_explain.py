"""`Classifier.explain`: numbers for any model and picture, a figure on request alone."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reference.random_weights import randomise
from vitlab import Preprocessing, VisionTransformer, ViTConfig, VitlabError, create_model
from vitlab.classify.classifier import Classifier
from vitlab.classify.explainer import class_number
from vitlab.explain import methods
from vitlab.explain.explanation import Explanation, caption
from vitlab.explain.figure import draw
from vitlab.explain.request import ExplainRequest, answerable
from vitlab.weights.source import WeightSource

CONFIG = ViTConfig(
    width=12,
    depth=2,
    heads=3,
    mlp_width=17,
    patch_size=(4, 6),
    image_size=(12, 30),
    channels=3,
    classes=5,
)
LABELS = ("ant", "bee", "cat", "dog", "elk")
METHODS = ("attention", "rollout", "relevance", "gradcam", "input-gradient")
every_method = pytest.mark.parametrize("method", METHODS)


def classifier(model: torch.nn.Module | None = None, **changes: Any) -> Classifier:
    if model is None:
        model = VisionTransformer(replace(CONFIG, **changes))
    randomise(model)
    config: Any = model.config
    size = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
    source = WeightSource(
        format="vitlab",
        path=Path("tiny.safetensors"),
        preprocessing=Preprocessing(
            size=size,
            crop=0.8,
            mean=(0.5,) * config.channels,
            std=(0.5,) * config.channels,
        ),
        labels=LABELS[: config.classes],
    )
    return Classifier(model, source)


def photo(height: int = 41, width: int = 67, channels: int = 3, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (height, width, channels), dtype=np.uint8)


@every_method
def test_maps_by_patch_and_by_pixel(method: Any) -> None:
    found = classifier().explain(photo(), method=method)
    assert found.map.shape == (3, 5)
    assert found.map.dtype == np.float32
    assert found.pixel_map.shape == (41, 67)
    assert found.map.std() > 0
    assert (found.target in LABELS) == (method in ("relevance", "gradcam", "input-gradient"))
    assert [label for label, _ in found.top] == sorted(
        LABELS, key=lambda label: -dict(found.top)[label]
    )
    assert sum(share for _, share in found.top) == pytest.approx(1, abs=1e-5)
    top, left, bottom, right = found.view.box
    assert (found.pixel_map[: int(top)] == 0).all()
    assert (found.pixel_map[:, int(right) + 1 :] == 0).all()
    inside = found.pixel_map[int(top) + 1 : int(bottom) - 1, int(left) + 1 : int(right) - 1]
    assert inside.max() > 0


def test_the_pixel_map_goes_through_the_middles_of_the_patches() -> None:
    asked = classifier()
    asked.source = replace(asked.source, preprocessing=replace(asked.preprocessing, crop=1.0))
    # Fifteen times the size that the model reads: a patch is 60 x 90, and its middle half a pixel
    # from that of a pixel, where the map has gone 1/120 of the way to a neighbour at most.
    found = asked.explain(photo(180, 450), method="rollout")
    room = float(np.ptp(found.map)) / 60
    np.testing.assert_allclose(found.pixel_map[30::60, 45::90], found.map, atol=room)


@every_method
def test_a_batch_is_its_images(method: Any) -> None:
    asked = classifier()
    photos = [photo(41, 67, seed=seed) for seed in range(5)]
    together = asked.explain_many(iter(photos), method=method, batch_size=3)
    assert len(together) == 5
    for one, alone in zip(together, photos, strict=True):
        own = asked.explain(alone, method=method)
        assert own.target == one.target
        # float32; batches of another size are summed in another order.
        np.testing.assert_allclose(one.map, own.map, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("size", [(41, 97), (97, 41), (50, 50)])
def test_photograph_and_map_are_beside_each_other(size: tuple[int, int]) -> None:
    figure = draw([classifier().explain(photo(*size), method="rollout")])
    figure.draw_without_rendering()
    image, heat = (axes.get_position() for axes in figure.axes[:2])
    assert (image.y0, image.y1) == pytest.approx((heat.y0, heat.y1), abs=1e-6)
    assert image.width == pytest.approx(heat.width, abs=1e-6)


def test_each_layer_and_each_head() -> None:
    asked = classifier(registers=2)
    for method in ("attention", "rollout", "relevance", "gradcam"):
        found = asked.explain(photo(), method=method, each="layer")
        assert [layer.shape for layer in found.layers] == [(3, 5)] * 2
        assert found.to_pixels(found.layers[0]).shape == (41, 67)
    found = asked.explain(photo(), method="attention", each="head")
    assert [layer.shape for layer in found.layers] == [(3, 3, 5)] * 2
    one = asked.explain(photo(), method="attention", layer=0, head=1)
    np.testing.assert_array_equal(one.map, found.layers[0][1])
    assert asked.explain(photo()).layers == ()


def test_the_target_by_name_and_by_number() -> None:
    asked = classifier()
    by_name, by_number = (asked.explain(photo(), target=target) for target in ("dog", 3))
    assert by_name.target == by_number.target == "dog"
    np.testing.assert_array_equal(by_name.map, by_number.map)
    other = asked.explain(photo(), target="ELK")
    assert other.target == "elk"
    assert not np.allclose(other.map, by_name.map)
    assert "“dog”" in by_name.question


def test_class_numbers() -> None:
    assert class_number(("crane", "kite", "crane"), "2") == 2
    assert class_number(("7", "8"), "8") == 1
    wrong: dict[Any, str] = {
        "crane": "class 'crane' is 2 classes; valid: one of 0, 2",
        "kit": "unknown class 'kit'; did you mean kite?",
        3: "class 3; valid: 0 to 2, or a name",
        "-1": "unknown class '-1'; valid: crane, crane, kite",
    }
    for target, message in wrong.items():
        with pytest.raises(VitlabError) as caught:
            class_number(("crane", "kite", "crane"), target)
        assert str(caught.value) == message
    many = [f"class number {number}" for number in range(1000)]
    with pytest.raises(VitlabError, match=r"'zzz'; valid: .* … \(1000 classes\)$") as caught:
        class_number(many, "zzz")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "atention"}, "unknown method 'atention'; did you mean attention"),
        ({"method": "rollout", "target": "dog"}, "class 'dog' says nothing to rollout; valid: rel"),
        ({"method": "relevance", "layer": 1}, "layer 1 says nothing to relevance; valid: att"),
        ({"method": "gradcam", "head": 1}, "head 1 says nothing to gradcam; valid: attention"),
        ({"method": "gradcam", "token": (1, 2)}, "token 1,2 says nothing to gradcam"),
        ({"method": "input-gradient", "each": "layer"}, "each 'layer' says nothing to input-gra"),
        ({"method": "rollout", "each": "head"}, "each 'head' with rollout; valid: attention"),
        ({"method": "attention", "each": "head", "head": 1}, "each 'head' shows all"),
        ({"method": "attention", "each": "x"}, "unknown each 'x'; valid: head, layer"),
        ({"method": "attention", "layer": 2}, "layer 2 does not exist; valid: -2 to 1"),
        ({"method": "attention", "head": 3}, "head 3; valid: 0 to 2"),
        ({"method": "attention", "head": -1}, "head -1; valid: 0 to 2"),
        ({"method": "attention", "token": (3, 0)}, "token 3,0; valid: rows 0 to 2, columns 0 to 4"),
        ({"method": "rollout", "token": (0, -1)}, "token 0,-1; valid: rows 0 to 2"),
    ],
)
@pytest.mark.usefixtures("no_type_checks")
def test_what_cannot_be_asked_is_refused(options: Any, message: str) -> None:
    with pytest.raises(VitlabError, match=re.escape(message)):
        classifier().explain(photo(), **options)


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "a.png"
    broken.write_bytes(b"\x89PNG nothing")
    with pytest.raises(VitlabError, match=r"a\.png: "):
        classifier().explain(broken)


def test_a_picture_is_shown_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(41, 67)).save(tmp_path / "turned.jpg", exif=exif)
    found = classifier().explain(tmp_path / "turned.jpg")
    assert found.picture.size == (41, 67)
    assert found.pixel_map.shape == (67, 41)
    assert found.path == str(tmp_path / "turned.jpg")


def test_without_a_head_attention_is_left() -> None:
    asked = classifier(classes=0)
    found = asked.explain(photo(), method="rollout")
    assert (found.top, found.target) == ((), None)
    with pytest.raises(VitlabError, match=r"has no head.*valid without one: attention, rollout"):
        asked.explain(photo())


def test_a_head_that_has_learned_nothing_explains_nothing() -> None:
    asked = classifier()
    asked.source = replace(asked.source, zero_head=True)
    assert asked.explain(photo(), method="attention").top == ()
    with pytest.raises(VitlabError, match="every weight of the head is zero"):
        asked.explain(photo())


def test_values_are_explained_too() -> None:
    asked = classifier()
    asked.source = replace(asked.source, task="regression")
    found = asked.explain(photo())
    assert found.target == "ant"
    assert [name for name, _ in found.top] == list(LABELS)
    assert asked.explain(photo(), target="elk").target == "elk"


def test_several_labels() -> None:
    asked = classifier()
    asked.source = replace(asked.source, task="multi-label")
    found = asked.explain(photo())
    assert all(share >= 0.5 for _, share in found.top)
    assert found.top[0][0] == found.target


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_pictures_of_other_channels(channels: int) -> None:
    found = classifier(channels=channels).explain(photo(channels=channels))
    assert found.map.shape == (3, 5)
    assert found.picture.size == (67, 41)
    assert found.picture.mode == ("RGB" if channels == 5 else "L")


@pytest.mark.parametrize(
    ("name", "changes", "grid"),
    [
        ("cnn_tutorial", {"classes": 5}, (10, 10)),
        ("resnet18_cifar", {"classes": 5, "width": 2, "layers": (1, 1)}, (16, 16)),
    ],
)
def test_cnns_have_gradients(name: str, changes: Any, grid: tuple[int, int]) -> None:
    asked = classifier(create_model(name, **changes))
    model, preprocessing = asked.model, asked.preprocessing
    for method in ("gradcam", "input-gradient"):
        found = asked.explain(photo(), method=method, target="cat")
        assert found.map.shape == grid
        assert found.pixel_map.shape == (41, 67)
    images = torch.from_numpy(preprocessing.apply(photo()))[None].requires_grad_()
    features = model.feature_map(images)
    logits = model.classify_map(features)
    torch.testing.assert_close(logits, model(images))
    slopes, gradient = torch.autograd.grad(logits[0, 2], [features, images])
    np.testing.assert_allclose(found.fine, gradient[0].norm(dim=0), rtol=1e-4, atol=1e-6)
    cam = (slopes.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1).clamp(min=0)[0].detach()
    found = asked.explain(photo(), method="gradcam", target="cat")
    np.testing.assert_allclose(found.map, cam, rtol=1e-4, atol=1e-5)
    for options, message in (
        ({"method": "rollout"}, "rollout of a .* which is no Vision Transformer; valid: gradcam"),
        ({"method": "gradcam", "layer": 1}, "gradcam of its layers of a"),
    ):
        with pytest.raises(VitlabError, match=message):
            asked.explain(photo(), **options)


@pytest.mark.parametrize("method", ["relevance", "gradcam", "input-gradient"])
def test_little_memory_gives_the_same(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = classifier(registers=1)
    kept = asked.explain(photo(), method=method).map
    monkeypatch.setattr(methods, "GRAPH_BYTES", 0)
    np.testing.assert_allclose(asked.explain(photo(), method=method).map, kept, rtol=1e-4)


def test_fewer_images_at_once_where_there_are_many_tokens() -> None:
    assert methods.images_at_once(VisionTransformer(CONFIG)) == 8
    with torch.device("meta"):
        large = create_model("vit_s16", image_size=1024)
    assert methods.images_at_once(large) == 1
    assert methods.graph_bytes(large, 1) > methods.GRAPH_BYTES


def test_which_methods_a_model_has() -> None:
    assert answerable(VisionTransformer(CONFIG)) == METHODS
    assert answerable(VisionTransformer(replace(CONFIG, depth=0))) == ("input-gradient",)
    assert answerable(create_model("cnn_tutorial")) == ("gradcam", "input-gradient")
    assert answerable(torch.nn.Linear(2, 3)) == ()
    with pytest.raises(VitlabError, match="a Linear; valid: a model of vitlab's"):
        ExplainRequest(method="gradcam").check(torch.nn.Linear(2, 3))


def test_numbers_need_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = classifier().explain(photo())
    assert found.to_json()["grid"] == [3, 5]
    with pytest.raises(
        VitlabError, match=r"a figure needs an extra: pip install 'vitlab\[plots\]'"
    ):
        found.figure()


def texts(figure: Any) -> str:
    from matplotlib.text import Text

    return " ".join(part.get_text() for part in figure.findobj(Text)).replace("\n", " ")


def test_a_figure_says_what_it_answers(tmp_path: Path) -> None:
    found = classifier(class_token=False, pool="mean").explain(photo(), target="cat")
    figure = found.figure()
    said = texts(figure)
    assert found.caption in said
    assert "averages its patches and has no class token" in said
    assert "for “cat”" in said
    assert all(label in said for label, _ in found.top[:5])
    found.save(tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as image:
        assert min(image.size) > 300


def test_figures_of_layers_heads_and_several() -> None:
    asked = classifier(registers=1)
    layers = asked.explain(photo(), method="rollout", each="layer").figure()
    assert {"block 0", "block 1"} <= {axes.get_title() for axes in layers.axes}
    heads = asked.explain(photo(), method="attention", each="head").figure()
    assert {"head 0", "head 1", "head 2"} <= {axes.get_title() for axes in heads.axes}
    several = asked.explain_many([photo(seed=seed) for seed in range(3)])
    assert len({one.target for one in several}) > 1
    said = texts(draw(several))
    assert "the class above it" in said
    assert all(f"for “{one.target}”" in said for one in several)
    with pytest.raises(VitlabError, match="every head of 2 images; valid: one image"):
        draw(asked.explain_many([photo()] * 2, method="attention", each="head"))
    with pytest.raises(VitlabError, match="a figure of 33 images; valid: up to 32"):
        draw([several[0]] * 33)


def test_the_patch_that_looks_is_marked() -> None:
    from matplotlib.patches import Rectangle

    asked = classifier()
    asked.source = replace(asked.source, preprocessing=replace(asked.preprocessing, crop=1.0))
    figure = asked.explain(photo(24, 60), method="attention", token=(1, 3)).figure()
    # Twice the size that the model reads, in patches of 8 x 12.
    for axes in figure.axes[:2]:
        (square,) = [part for part in axes.patches if isinstance(part, Rectangle)]
        assert square.get_xy() == pytest.approx((3 * 12 - 0.5, 8 - 0.5))
        assert (square.get_width(), square.get_height()) == pytest.approx((12, 8))


def test_what_lies_on_no_patch_is_said() -> None:
    found: Explanation = classifier(registers=3).explain(photo(), method="attention")
    assert found.elsewhere is not None
    assert found.elsewhere + float(found.map.sum()) == pytest.approx(1, abs=1e-5)
    assert f"{found.elsewhere:.0%} of it lies on tokens that are no patches" in found.caption


def test_a_flat_map_is_said_to_be_flat() -> None:
    asked = classifier(class_token=False, pool="mean")
    assert "same for every patch" not in asked.explain(photo()).caption
    for block in asked.model.encoder.blocks:
        torch.nn.init.zeros_(block.attention.proj.weight)  # attention that nothing reads
    found = asked.explain(photo())
    np.testing.assert_allclose(found.map, np.full((3, 5), 1 / 15), rtol=1e-5)
    assert found.caption.endswith("It is the same for every patch.")
    assert "the map is the same for every patch" in caption([found, found])


def test_attention_of_ones_own_kind() -> None:
    """A kind with `forward` and `weights` alone can be looked at, but not differentiated."""

    class Mine(torch.nn.Module):
        def forward(self, x: torch.Tensor, grid: Any) -> torch.Tensor:
            return x.mean(dim=1, keepdim=True).expand_as(x)

        def weights(self, x: torch.Tensor, grid: Any) -> torch.Tensor:
            return x.new_full((len(x), 3, x.shape[1], x.shape[1]), 1 / x.shape[1])

    asked = classifier()
    for block in asked.model.encoder.blocks:
        block.attention = Mine()
    found = asked.explain(photo(), method="attention")
    np.testing.assert_allclose(found.map, np.full((3, 5), 1 / 16), rtol=1e-6)
    assert asked.explain(photo(), method="rollout").map.shape == (3, 5)
    assert answerable(asked.model) == ("attention", "rollout")
    with pytest.raises(VitlabError, match=r"Mine is attention of your own.*attention and rollout"):
        asked.explain(photo())
