"""`vitlab.figures`: the numbers of each figure for every kind of model, and the files."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from data.colours import small_model, write_colours
from models.vit_cases import CASES
from reference.random_weights import randomise
from vitlab import Preprocessing, VisionTransformer
from vitlab.classify.classifier import Classifier
from vitlab.errors import DataError, FileError, InputError, UnknownName, Unsupported, VitlabError
from vitlab.explain.embedding import linear_cka, principal_components, unbiased_cka
from vitlab.explain.statistics import attention_distance, patch_distances
from vitlab.explain.weights import cosine_maps, position_tables
from vitlab.jobs.figures import figures
from vitlab.models.config import pair
from vitlab.models.merging import merging
from vitlab.report.figures.features import as_rgb, spread
from vitlab.report.figures.table import FIGURES
from vitlab.report.figures.weights import mosaic
from vitlab.report.plots import as_colours
from vitlab.weights.source import WeightSource

# Seven digits are written.
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def classifier(name: str, **changes: Any) -> Classifier:
    """A tiny model of a kind that reads RGB."""
    model = VisionTransformer(replace(CASES[name], channels=3, **changes)).eval()
    randomise(model)
    size = pair(model.config.image_size)
    preparation = Preprocessing(
        size=size, mean=(0.4,) * 3, std=(0.3,) * 3, interpolation="bilinear", keep_aspect=False
    )
    source = WeightSource(format="vitlab", path=Path(f"{name}.pt"), preprocessing=preparation)
    return Classifier(model, source)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("figures") / "colours", {"train": 2, "test": 1})


def prepared(looked_at: Classifier, folder: Path) -> torch.Tensor:
    files = sorted(folder.rglob("*.png"))
    pixels = np.stack([looked_at.preprocessing.apply(path) for path in files])
    return torch.from_numpy(pixels)


def test_a_model_that_merges_tokens_is_drawn_as_what_it_is(folder: Path) -> None:
    plain = classifier("registers")
    merged = Classifier(merging(plain.model, 2), plain.source)
    wanted, found = (figures(one, data=folder, images=50) for one in (plain, merged))
    assert found.lacking == {}
    assert found["filters"] == wanted["filters"]
    assert found["positions"] == wanted["positions"]


def test_the_numbers_are_those_of_the_definitions(folder: Path) -> None:
    looked_at = classifier("registers")
    found = figures(looked_at, data=folder, images=50)
    model, images = looked_at.model, prepared(looked_at, folder)
    assert (found.images, found.lacking, found.broken, found.files) == (9, {}, {}, ())
    assert list(found.figures) == list(FIGURES)
    with torch.inference_mode():
        attention, features = model.attention(images), model.features(images, layers=(0, 1))
    layers = found["attention-distance"]["layers"]
    for layer in layers:
        distances = attention_distance(
            attention[layer["layer"]].double(), (5, 7), prefix=3, stride=(3.0, 2.0)
        )
        np.testing.assert_allclose(layer["distance"], distances.mean(dim=0), **TOLERANCE)
        np.testing.assert_allclose(
            layer["distance_std"], distances.std(dim=0, correction=0), **TOLERANCE
        )
        np.testing.assert_allclose(layer["evenly"], patch_distances((5, 7), (3.0, 2.0)).mean())
        assert layer["grid"] == [5, 7]
    entropy = found["attention-entropy"]["layers"]
    expected = torch.special.entr(attention[1].double()).sum(dim=-1).mean(dim=(0, 2))
    np.testing.assert_allclose(entropy[1]["entropy"], expected, **TOLERANCE)
    np.testing.assert_allclose(entropy[1]["evenly"], np.log(3 + 35))
    maps = cosine_maps(position_tables(model)[0])
    np.testing.assert_allclose(found["positions"]["maps"][0], maps, **TOLERANCE)
    behind = torch.stack([features.layers[layer].patches.mean(dim=(1, 2)) for layer in (0, 1)])
    for key, cka in (("cka", unbiased_cka), ("cka_biased", linear_cka)):
        inner = np.array(found["cka"][key])[1:, 1:]
        np.testing.assert_allclose(inner, cka(behind), rtol=1e-3, atol=1e-4)
    rgb = np.array(found["feature-pca"]["rgb"])
    patches = features.patches[[0, 1, 2, 3, 4, 5, 6, 7]]  # of 9, one in every 9 / 8
    components = principal_components(patches.flatten(0, 2), 3)
    np.testing.assert_allclose(rgb, as_rgb(components.project(patches)), atol=1e-3)
    assert found["tsne"]["labels"] == [path.parent.name for path in sorted(folder.rglob("*.png"))]
    assert len(found["tsne"]["points"]) == 9


def test_pictures_come_from_everywhere() -> None:
    assert sorted(spread(128)) == [0, 16, 32, 48, 64, 80, 96, 112]
    assert sorted(spread(3)) == [0, 1, 2]


def test_the_pictures_are_the_images(folder: Path) -> None:
    looked_at = classifier("paper")
    found = figures(looked_at, data=folder, only=["feature-pca"])
    pictures = found.figures["feature-pca"].pictures
    for path, picture in zip(found["feature-pca"]["images"], pictures, strict=True):
        pixels = looked_at.preprocessing.pixels(path).transpose(1, 2, 0)
        np.testing.assert_array_equal(picture, pixels)


def test_files_hold_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "a" / "b"
    told: list[tuple[str, int, int]] = []
    looked_at = classifier("learned2d_every")
    found = figures(looked_at, output, data=folder, watch=lambda *step: told.append(step))
    assert sorted(path.name for path in output.iterdir()) == sorted(
        f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg", "json")
    )
    assert set(found.files) == set(output.iterdir())
    for name in FIGURES:
        written = json.loads((output / f"{name}.json").read_text())
        about = {"figure": name, "model": "learned2d_every.pt"}
        assert written == about | {"caption": found.figures[name].caption} | found[name]
        with Image.open(output / f"{name}.png") as picture:
            assert picture.width > 500
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 20
        assert (output / f"{name}.svg").read_text().lstrip().startswith("<?xml")
    assert {what for what, _, _ in told} == {"images", "t-SNE", "drawing"}
    assert all(done <= total for _, done, total in told)
    before = {path: path.read_bytes() for path in output.iterdir()}
    replace(found, figures={"cka": found.figures["cka"]}).write(output)
    assert {path: path.read_bytes() for path in output.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("gap", {}),
        ("lsa", {}),
        ("sliding_groups", {}),
        ("axial", {}),
        ("sparse_even", {}),
        ("relative_lsa", {}),
        ("sincos2d", {}),
        ("rope_registers", {"positions": "turn queries and keys"}),
        ("no_position", {"positions": "has no positions"}),
        ("conditional_every", {"positions": "depend on the tokens"}),
        ("relative_bias_lsa", {}),
        ("pooled_relative", {}),
        ("map_gap", {}),
        ("conv", {}),
        ("hybrid", {}),
        ("shifted", {}),
    ],
)
def test_every_kind_of_model(name: str, lacking: dict[str, str], folder: Path) -> None:
    numbers = set(FIGURES) - {"tsne"}
    found = figures(classifier(name), data=folder, images=5, only=numbers)
    assert set(found.figures) == numbers - set(lacking)
    assert found.lacking.keys() == lacking.keys()
    for figure, reason in lacking.items():
        assert reason in found.lacking[figure]
    text = json.dumps({name: figure.data for name, figure in found.figures.items()})
    assert "NaN" not in text


@pytest.mark.parametrize("name", ["pooled_relative", "pooled_relative_bias"])
def test_what_has_no_images_is_drawn_too(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = figures(classifier(name), tmp_path, only=["positions"])
    assert found.images == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_relative_positions_show_the_table_of_every_layer() -> None:
    looked_at = classifier("relative")
    data = figures(looked_at, only=["positions"])["positions"]
    assert data["kind"] == "offsets"
    for table, block in zip(data["tables"], looked_at.model.encoder.blocks, strict=True):
        # From the key that comes longest before the query to the one that comes longest after.
        np.testing.assert_allclose(table, block.attention.offsets.detach().flip(0), **TOLERANCE)


def test_biases_of_heads_are_shown_as_they_are() -> None:
    looked_at = classifier("relative_bias")
    data = figures(looked_at, only=["positions"])["positions"]
    assert data["kind"] == "bias"
    for table, block in zip(data["tables"], looked_at.model.encoder.blocks, strict=True):
        np.testing.assert_allclose(table, block.attention.offset_bias.table.detach(), **TOLERANCE)


def test_of_a_large_grid_some_maps_are_shown() -> None:
    looked_at = classifier("paper", patch_size=1, image_size=(17, 5))
    data = figures(looked_at, only=["positions"])["positions"]
    assert data["rows"] == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert data["columns"] == [0, 1, 2, 3, 4]
    assert np.shape(data["maps"][0]) == (9, 5, 17, 5)


def test_a_mosaic_puts_each_map_where_its_patch_lies() -> None:
    maps = np.arange(2 * 3 * 5 * 7, dtype=np.float64).reshape(2, 3, 5, 7)
    picture = mosaic(maps)
    assert picture.shape == (2 * 5 + 1, 3 * 7 + 2)
    np.testing.assert_array_equal(picture[6:, 8:15], maps[1, 1])
    assert np.isnan(picture[5]).all()
    assert np.isnan(picture[:, 7]).all()


def test_filters_are_shown_around_grey() -> None:
    images = np.zeros((2, 5, 3, 2))
    images[0, 1, 2, 0], images[0, 2, 0, 1] = 4.0, -2.0
    shown = as_colours(images)
    assert shown.shape == (2, 3, 2, 3)
    assert shown[0, 2, 0].tolist() == [0.5, 1.0, 0.5]
    assert shown[0, 0, 1].tolist() == [0.5, 0.5, 0.25]
    assert (shown[1] == 0.5).all()
    assert as_colours(images[:, 1:2])[0, 2, 0].tolist() == [1.0, 1.0, 1.0]


def test_a_convolutional_network_has_two_figures(folder: Path) -> None:
    found = figures("cnn_tutorial", data=folder, images=4)
    assert set(found.figures) == {"filters", "tsne"}
    assert found.lacking["cka"] == "cka: a TutorialCNN has no layers of tokens"
    assert found.fresh


def test_a_model_without_blocks_has_the_figures_of_its_stem(folder: Path) -> None:
    found = figures(classifier("paper", depth=0), data=folder, images=4)
    assert set(found.figures) == {"filters", "positions", "feature-pca", "tsne"}
    assert found.lacking["cka"] == "cka: the model has no encoder blocks"


def test_names_have_weights_that_follow_from_nothing_but_the_name(folder: Path) -> None:
    torch.manual_seed(1)
    first = figures("vit_test", only=["filters"])
    state = torch.get_rng_state()
    second = vitlab.figures("vit_test", only=["filters"])
    assert first["filters"] == second["filters"]
    assert torch.equal(state, torch.get_rng_state())


def test_images_are_drawn_by_the_seed(folder: Path) -> None:
    looked_at = classifier("paper")
    drawn = [
        figures(looked_at, data=folder, images=4, seed=seed, only=["feature-pca"])
        for seed in (0, 0, 2)
    ]
    names = [found["feature-pca"]["images"] for found in drawn]
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == 4
    assert names[0] == sorted(names[0])


def test_named_data_gives_test_images() -> None:
    found = figures("vit_test", images=3, only=["tsne"])
    assert all(name.startswith("sample/test/") for name in found["tsne"]["images"])
    assert all(found["tsne"]["labels"])


def test_a_broken_image_is_left_out_and_told(tmp_path: Path) -> None:
    write_colours(tmp_path, {"train": 1})
    broken = tmp_path / "train" / "red" / "broken.png"
    broken.write_bytes(b"no image")
    found = figures(classifier("paper"), data=tmp_path, only=["tsne"])
    assert found.images == 3
    assert list(found.broken) == [str(broken)]
    broken.rename(tmp_path / "alone.png")
    with pytest.raises(DataError, match="none of 1 images can be read"):
        figures(classifier("paper"), data=tmp_path / "alone.png", only=["tsne"])


def test_few_images_are_too_few_for_cka_alone(folder: Path) -> None:
    found = figures(classifier("paper"), data=folder, images=3, only=["cka", "tsne"])
    assert found.lacking == {"cka": "cka: 3 images; valid: at least 4"}
    assert set(found.figures) == {"tsne"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"only": ["filter"]}, UnknownName, "unknown figure 'filter'; did you mean filters?"),
        ({"images": 0}, InputError, "images 0; valid: at least 1"),
        ({"data": "nowhere/at/all"}, DataError, "nowhere/at/all: no such file or folder"),
        ({"model": "vit_tset"}, UnknownName, "unknown model or file 'vit_tset'; did you mean"),
        ({"model": "rope", "only": ["positions"]}, Unsupported, "positions: rotary positions turn"),
    ],
)
def test_mistakes_write_nothing(
    arguments: dict[str, Any], error: type[VitlabError], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    model: Any = arguments.pop("model", "vit_test")
    model = classifier(model) if model in CASES else model
    with pytest.raises(error, match=message):
        figures(model, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_data_of_other_channels_is_one_line(no_type_checks: None) -> None:
    looked_at = Classifier(
        VisionTransformer(CASES["paper"]),
        WeightSource(
            format="vitlab",
            path=Path("a"),
            preprocessing=Preprocessing(size=(15, 14), mean=(0.5,) * 5, std=(0.5,) * 5),
        ),
    )
    with pytest.raises(DataError, match="images of 3 channels for a model of 5; valid: other data"):
        figures(looked_at)
    assert set(figures(looked_at, only=["filters", "positions"]).figures) == {
        "filters",
        "positions",
    }


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="file: a file; valid: a folder, new or not"):
        figures("vit_test", tmp_path / "file")


def test_drawing_is_an_extra_and_numbers_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(VitlabError, match=r"drawing figures needs an extra: .*vitlab\[plots\]"):
        figures("vit_test", tmp_path / "out")
    assert figures("vit_test", only=["filters"])["filters"]["total"] == 32


def test_a_model_without_preprocessing_has_figures_that_need_no_image(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.safetensors"
    vitlab.save_weights(model, path, format="timm")
    looked_at = vitlab.load_weights(path, preprocessing=None, heads=2)
    looked_at.source = replace(looked_at.source, preprocessing=None)
    bare = Classifier(looked_at, looked_at.source)
    assert set(figures(bare, only=["filters", "positions"]).figures) == {"filters", "positions"}
    with pytest.raises(VitlabError, match="nothing says how images must be prepared"):
        figures(bare)
