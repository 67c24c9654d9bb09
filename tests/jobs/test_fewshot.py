"""The whole few-shot job: what is drawn, what is computed, what is judged."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageColor

from data.colours import COLOURS, saved_model, small_model, write_colours
from vitlab import load, save_weights
from vitlab.data.order import generator
from vitlab.errors import DataError, InputError, PreprocessingUnknown
from vitlab.evaluation.fewshot import METHODS, Labelled, draw_shots
from vitlab.jobs import features as embed
from vitlab.jobs.fewshot import STYLES, fewshot, write_plot
from vitlab.models.features import Readout

COUNTS = {"train": 7, "test": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "colours", COUNTS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model.safetensors")


def embedded(model: Path, folder: Path, split: str) -> Labelled:
    """All images of a split, one by one."""
    files = [path for colour in COLOURS for path in sorted((folder / split / colour).glob("*.png"))]
    labels = torch.tensor([COLOURS.index(path.parent.name) for path in files])
    features = load(model).features(files, batch_size=1)
    return Labelled(features=torch.from_numpy(features), labels=labels)


def test_every_number_follows_from_the_plain_steps(model: Path, folder: Path) -> None:
    found = fewshot(model, folder, shots=(2, 1), draws=2, seed=5)
    train, test = embedded(model, folder, "train"), embedded(model, folder, "test")
    assert (found.test_images, found.classes, found.draws) == (15, 3, 2)
    assert [(s.method, s.shots) for s in found.scores] == [(m, s) for m in METHODS for s in (1, 2)]
    for score in found.scores:
        for draw, accuracy in enumerate(score.accuracies):
            chosen = draw_shots(train.labels, COLOURS, 2, generator=generator(5, "fewshot", draw))[
                :, : score.shots
            ].flatten()
            shots = Labelled(features=train.features[chosen], labels=train.labels[chosen])
            answer = METHODS[score.method](shots, 3, test)
            assert (accuracy, score.settings[draw]) == (answer.accuracy, answer.setting)


def test_colours_are_told_apart_and_the_seed_decides(model: Path, folder: Path) -> None:
    quick = ["least-squares", "knn"]
    found = fewshot(model, folder, shots=(5,), draws=3, methods=quick)
    assert all(score.mean > 0.8 for score in found.scores)
    assert found == fewshot(model, folder, shots=(5,), draws=3, methods=quick)


def test_each_image_goes_through_the_model_once(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Counting(Readout):
        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(len(images))
            return super().__call__(images)

    monkeypatch.setattr(embed, "Readout", Counting)
    fewshot(model, folder, shots=(1, 2), draws=1, batch_size=4, methods=["knn"])
    assert sum(sizes) == 3 * 2 + 3 * COUNTS["test"]  # the drawn ones, not all of train
    assert max(sizes) == 4


def test_unreadable_images_are_replaced(model: Path, folder: Path) -> None:
    for number in (0, 1, 2):
        (folder / "train" / "red" / f"{number}.png").write_bytes(b"no image")
    (folder / "test" / "red" / "0.png").write_bytes(b"")
    found = fewshot(model, folder, shots=(4,), draws=5, methods=["knn"])
    assert found.test_images == 14
    assert sorted(found.broken) == [
        str(folder / "test" / "red" / "0.png"),
        *(str(folder / "train" / "red" / f"{number}.png") for number in (0, 1, 2)),
    ]
    with pytest.raises(DataError, match="class 'red' has 4 readable training images"):
        fewshot(model, folder, shots=(5,), draws=5)


def test_progress_is_told(model: Path, folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fewshot(
        model,
        folder,
        shots=(2,),
        draws=2,
        methods=["knn"],
        watch=lambda what, done, total: told.append((what, done, total)),
    )
    assert list(dict.fromkeys(what for what, _, _ in told)) == [
        "train images",
        "test images",
        "fits",
    ]
    for what in ("train images", "test images", "fits"):
        done, total = [(d, t) for w, d, t in told if w == what][-1]
        assert done == total > 1


def test_named_data_and_another_layer(model: Path) -> None:
    found = fewshot(model, "digits", shots=(2,), draws=1, methods=["knn"], kind="cls", layer=-1)
    assert (found.data, found.classes, found.kind, found.layer) == ("digits", 10, "cls", 1)
    assert 0.1 < found.scores[0].mean <= 1


def test_json_holds_everything(model: Path, folder: Path) -> None:
    found = fewshot(model, folder, shots=(2,), draws=1, methods=["knn"]).to_dict()
    (score,) = found["scores"]
    assert score["interval"] is None
    assert score["accuracies"] == [score["mean"]]
    assert (found["data"], found["seed"], found["broken"]) == ("colours", 0, {})


def test_a_plot_shows_every_method(model: Path, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = fewshot(model, folder, shots=(1,), draws=2)
    write_plot(found, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {ImageColor.getrgb(colour) for colour, _ in STYLES.values()} <= colours
    assert len(STYLES) == 3


def test_mistakes(model: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="patches are a grid"):
        fewshot(model, folder, kind="patches")
    with pytest.raises(InputError, match="batch_size 0"):
        fewshot(model, folder, batch_size=0)
    (folder / "test").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="has no test split"):
        fewshot(model, folder, shots=(1,))


def test_unknown_preprocessing_is_asked_for(folder: Path, tmp_path: Path) -> None:
    model = small_model(width=128, gelu="tanh")
    model.source = None  # which says how images are prepared
    save_weights(model, tmp_path / "a.npz", format="google")
    with pytest.raises(PreprocessingUnknown, match="nothing says how images must be prepared"):
        fewshot(tmp_path / "a.npz", folder, shots=(1,))


@pytest.mark.slow
def test_deit_tiny_on_real_images(shared: Path) -> None:
    model = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    found = fewshot(model, shared / "data" / "imagenette-mini", shots=(5,), draws=3)
    best = {score.method: score.mean for score in found.scores}
    assert found.test_images == 500
    assert best["least-squares"] > 0.93
